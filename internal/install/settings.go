package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"rik.dev/rik/internal/install/layout"
)

var settingName = regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)

// setAll sets variables in the text of an environment file of systemd. It keeps all other lines.
func setAll(text string, settings []Setting) (string, error) {
	for _, s := range settings {
		if !settingName.MatchString(s.Name) {
			return "", fmt.Errorf("programmer error: %q is not the name of a variable", s.Name)
		}
		line, err := s.line()
		if err != nil {
			return "", err
		}
		text = set(text, s.Name, line)
	}
	return text, nil
}

// set replaces the line of a variable, or a commented line of it, or appends one.
func set(text, name, line string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	at := -1
	for i, l := range lines {
		switch trimmed := strings.TrimSpace(l); {
		case strings.HasPrefix(trimmed, name+"="):
			at = i
		case at < 0 && strings.HasPrefix(trimmed, "#"+name+"="):
			at = i
		}
	}
	if at < 0 {
		lines = append(lines, line)
	} else {
		lines[at] = line
	}
	return strings.Join(lines, "\n") + "\n"
}

// line returns the setting as systemd.exec(5) reads it: in double quotes, a backslash and a quote
// are escaped. systemd does not expand variables in these files.
func (s Setting) line() (string, error) {
	if strings.ContainsAny(s.Value, "\n\r\x00") {
		return "", fmt.Errorf("the value of %s has more than one line", s.Name)
	}
	if !strings.ContainsAny(s.Value, " \t\"'\\#;$`") {
		return s.Name + "=" + s.Value, nil
	}
	return s.Name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(s.Value) + `"`, nil
}

// FlagsOf returns the flags of a service, from its configuration file. systemd splits the value at
// spaces. A missing file has no flags.
func FlagsOf(root string, p layout.Package) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(root, layout.ConfigOf(p).Path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the configuration: %w", err)
	}
	name := map[layout.Package]string{layout.Server: "RIK_SERVER_FLAGS", layout.Node: "RIKLET_FLAGS"}[p]
	var flags []string
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+"="); found {
			flags = strings.Fields(strings.Trim(value, `"'`))
		}
	}
	return flags, nil
}

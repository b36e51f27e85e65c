package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// FlagsOf returns the flags of a service, from its files of settings. systemd splits the value at
// spaces.
func FlagsOf(root string, p layout.Package) ([]string, error) {
	var files []string
	for _, name := range layout.SettingsFiles(p) {
		files = append(files, filepath.Join(root, name))
	}
	settings, err := ReadSettings(files, fs.ErrNotExist)
	return strings.Fields(settings[layout.FlagsVariable(p)]), err
}

// ReadSettings reads files in the format of systemd's EnvironmentFile=; a later file wins. It skips
// files that cannot be opened with one of the errors.
func ReadSettings(files []string, skip ...error) (map[string]string, error) {
	all := map[string]string{}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if slices.ContainsFunc(skip, func(s error) bool { return errors.Is(err, s) }) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if !ok || strings.HasPrefix(name, "#") {
				continue
			}
			all[name] = unquote(value)
		}
	}
	return all, nil
}

// unquote removes the quotes around a value. In double quotes it removes the backslashes that line
// adds.
func unquote(value string) string {
	if inside, ok := strings.CutPrefix(value, `"`); ok && strings.HasSuffix(inside, `"`) {
		return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\$`, "$", "\\`", "`").Replace(strings.TrimSuffix(inside, `"`))
	}
	return strings.Trim(value, "'")
}

package rikctl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/testkit/apiprocess"
)

// TestThePapersConfigurationSuggestsAWorkingCommand uses the RIKCONFIG of the third paper, which
// has a name and http://127.0.0.1:5000. The error must suggest a command that works.
func TestThePapersConfigurationSuggestsAWorkingCommand(t *testing.T) {
	t.Parallel()
	server := apiprocess.Shared(t)
	for name, tc := range map[string]struct {
		url  string
		line []string
	}{
		"http":               {strings.Replace(server.URL, "https://", "http://", 1), []string{"get", "namespaces"}},
		"https":              {server.URL, []string{"get", "namespaces"}},
		"typed client":       {strings.Replace(server.URL, "https://", "http://", 1), []string{"top", "nodes"}},
		"with a value":       {strings.Replace(server.URL, "https://", "http://", 1), []string{"get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}"}},
		"a further --config": {strings.Replace(server.URL, "https://", "http://", 1), []string{"get", "namespaces", "--config", "MINE"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.env[config.EnvData] = server.DataDir
			mine := filepath.Join(m.home, "config.json")
			if err := os.WriteFile(mine, []byte(`{"cluster": {"name": "rik", "server": "`+tc.url+`"}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			m.env[config.EnvPath] = mine
			line := append([]string{}, tc.line...)
			for i := range line {
				line[i] = strings.Replace(line[i], "MINE", mine, 1)
			}
			r := m.run(t, line...)
			if r.code == clierror.ExitOK {
				t.Fatalf("it worked without credentials: %s", r.out)
			}
			_, command, found := strings.Cut(r.err, "has both: rikctl ")
			if !found {
				t.Fatalf("the error names no command: %s", r.err)
			}
			var next []string
			for _, word := range strings.Split(strings.TrimSpace(command), " ") {
				next = append(next, strings.Trim(word, "'"))
			}
			again := m.run(t, next...)
			if again.code != clierror.ExitOK && name != "typed client" || strings.Contains(again.err, "certificate") || strings.Contains(again.err, "credentials") {
				t.Errorf("%q ends with %d: %s", next, again.code, again.err)
			}
		})
	}
}

func TestConfigurationsWithoutCredentialsOfOthers(t *testing.T) {
	t.Parallel()
	server := apiprocess.Shared(t)
	m := newMachine(t)
	mine := filepath.Join(m.home, "config.json")
	m.env[config.EnvPath] = mine
	if err := os.WriteFile(mine, []byte(`{"cluster": {"name": "rik", "server": "`+server.URL+`"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run(t, "get", "nodes").check(t, clierror.ExitUnreachable, "config.yaml of the server's --data-dir")
	// A configuration with an authority and a token has another error and another suggestion.
	if err := os.WriteFile(mine, []byte(`{"cluster": {"name": "rik", "server": "`+server.URL+`", "token": "x"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.run(t, "get", "nodes").check(t, clierror.ExitUnreachable, "is not signed by the authority")
}

// TestTheServersOwnFileIsNotChanged checks that rikctl does not write to the server's file,
// because the server rewrites it at its next start.
func TestTheServersOwnFileIsNotChanged(t *testing.T) {
	t.Parallel()
	server := apiprocess.Shared(t)
	own := filepath.Join(server.DataDir, "config.yaml")
	before, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"named": own, "by a link": link, "not clean": server.DataDir + "/./config.yaml"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.env[config.EnvPath] = path
			r := m.run(t, "config", "set-cluster", "office", "--server", "https://192.0.2.1:5000")
			r.check(t, clierror.ExitError, "belongs to the server")
			_, command, found := strings.Cut(r.err, "a file of your own: rikctl ")
			if !found {
				t.Fatalf("the error names no command: %s", r.err)
			}
			m.run(t, strings.Fields(command)...).check(t, clierror.ExitOK, "office is stored in "+m.home)
			m.run(t, "config", "use", "other").check(t, clierror.ExitError, "belongs to the server")
		})
	}
	t.Cleanup(func() {
		if after, err := os.ReadFile(own); err != nil || string(after) != string(before) {
			t.Errorf("the server's file was changed (%v)", err)
		}
	})
}

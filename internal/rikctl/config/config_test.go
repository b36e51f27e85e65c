package config

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const pemText = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"

// source returns a Source made of maps. A file with the content "denied" may not be read.
func source(env, files map[string]string) Source {
	return Source{
		Flag:   env["flag"],
		Getenv: func(k string) string { return env[k] },
		Home:   "/home/ada",
		ReadFile: func(path string) ([]byte, error) {
			content, ok := files[path]
			switch {
			case !ok:
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
			case content == "denied":
				return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrPermission}
			}
			return []byte(content), nil
		},
	}
}

func of(server string) string { return "cluster: {name: c, server: \"" + server + "\"}\n" }

func TestOrder(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"/flag.yaml": of("https://flag"), "/env.json": `{"cluster":{"name":"c","server":"https://env"}}`,
		"/home/ada/.rik/config.yaml": of("https://user"), "/var/lib/rik/data/config.yaml": of("https://system"),
		"/srv/config.yaml": of("https://elsewhere"),
	}
	without := func(paths ...string) map[string]string {
		left := map[string]string{}
		for p, c := range files {
			left[p] = c
		}
		for _, p := range paths {
			delete(left, p)
		}
		return left
	}
	tests := []struct {
		name  string
		env   map[string]string
		files map[string]string
		want  string
	}{
		{"the flag is first", map[string]string{"flag": "/flag.yaml", EnvPath: "/env.json"}, files, "https://flag"},
		{"then the variable, in JSON", map[string]string{EnvPath: "/env.json"}, files, "https://env"},
		{"then the user's", nil, files, "https://user"},
		{"then the server's", nil, without("/home/ada/.rik/config.yaml"), "https://system"},
		{"the server's elsewhere", map[string]string{EnvData: "/srv"}, without("/home/ada/.rik/config.yaml"), "https://elsewhere"},
		{"the variable overrides", map[string]string{EnvServer: "http://10.0.0.1:5000"}, files, "http://10.0.0.1:5000"},
		{"the variable suffices", map[string]string{EnvServer: "https://alone"}, nil, "https://alone"},
		{"also where the server's may not be read", map[string]string{EnvServer: "https://alone"},
			map[string]string{"/var/lib/rik/data/config.yaml": "denied"}, "https://alone"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			found, err := Find(source(tc.env, tc.files))
			if err != nil {
				t.Fatal(err)
			}
			if got := found.Client.Clusters[found.Client.Contexts[found.Client.CurrentContext].Cluster].Server; got != tc.want {
				t.Errorf("Find() = server %s, want %s", got, tc.want)
			}
		})
	}
}

func TestNameOverride(t *testing.T) {
	t.Parallel()
	found, err := Find(source(map[string]string{EnvName: "other"}, map[string]string{"/home/ada/.rik/config.yaml": of("https://user")}))
	if err != nil {
		t.Fatal(err)
	}
	if found.File.Cluster.Name != "other" || found.Client.CurrentContext != "other" {
		t.Errorf("Find() = %q, context %q; want other", found.File.Cluster.Name, found.Client.CurrentContext)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	const user = "/home/ada/.rik/config.yaml"
	tests := []struct {
		name       string
		env, files map[string]string
		want       []string
	}{
		{"nothing anywhere", nil, nil, []string{"looked at", "--config: not set", "$RIKCONFIG: not set", user + " does not exist", "/var/lib/rik/data/config.yaml does not exist"}},
		{"named and missing", map[string]string{EnvPath: "/gone"}, map[string]string{user: of("https://user")}, []string{"$RIKCONFIG", "/gone", "not exist"}},
		{"may not be read", nil, map[string]string{"/var/lib/rik/data/config.yaml": "denied"}, []string{"/var/lib/rik/data/config.yaml", "permission denied"}},
		{"unknown key", nil, map[string]string{user: "cluster: {name: a, sever: b}"}, []string{user, `unknown field "cluster.sever"`}},
		{"no server", nil, map[string]string{user: "cluster: {name: a}"}, []string{user, "cluster.server", "required"}},
		{"no scheme", nil, map[string]string{user: of("127.0.0.1:5000")}, []string{"cluster.server"}},
		{"a key without its certificate", nil, map[string]string{user: "cluster: {server: 'https://a', clientKey: /k}", "/k": pemText}, []string{"clientCertificate and cluster.clientKey must both be set"}},
		{"a missing authority", nil, map[string]string{user: "cluster: {server: 'https://a', certificateAuthority: ca.crt}"}, []string{"cluster.certificateAuthority", "/home/ada/.rik/ca.crt"}},
		{"an authority that is none", nil, map[string]string{user: "cluster: {server: 'https://a', certificateAuthority: /x}", "/x": "hello"}, []string{"cluster.certificateAuthority", "/x contains no PEM"}},
		{"not YAML", nil, map[string]string{user: "a: ["}, []string{user, "neither YAML nor JSON"}},
		{"text", nil, map[string]string{user: "garbage{{{"}, []string{user, `document: Invalid value: "garbage{{{": must be an object`}},
		{"a list", nil, map[string]string{user: "[1,2]"}, []string{user, "document: Invalid value: [1,2]: must be an object"}},
		{"wrong type", nil, map[string]string{user: "clusters: [{name: 5}]"}, []string{user, "clusters[0].name: Invalid value: 5: must be text"}},
		{"a secret of the wrong type", nil, map[string]string{user: "cluster: {token: 5}"}, []string{user, `cluster.token: Invalid value: "REDACTED": must be text`}},
		{"a kubeconfig", nil, map[string]string{user: "apiVersion: v1\nkind: Config\nclusters: []"}, []string{user, "the file is a kubeconfig"}},
		{"another protocol", nil, map[string]string{user: of("ftp://a")}, []string{user, `cluster.server: "ftp://a" is not an http or https URL`}},
		{"the variable is wrong, not the file", map[string]string{EnvServer: "ftp://a"}, map[string]string{user: of("https://a")}, []string{"$RIK_CLUSTER_SERVER", "ftp://a"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := Find(source(tc.env, tc.files))
			if len(tc.want) == 0 {
				if err != nil {
					t.Errorf("Find() = %v, want no error", err)
				}
				return
			}
			if err == nil {
				t.Fatal("Find() = nil, want an error")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Find() = %q, want it to contain %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "Go ") || strings.Contains(err.Error(), "config.File") {
				t.Errorf("Find() = %q, which speaks of the program", err)
			}
			if remedy, ok := err.(interface{ Next() string }); !ok || remedy.Next() == "" {
				t.Errorf("Find() = %q without a next step", err)
			}
		})
	}
}

func TestDeniedGivesTheRemedy(t *testing.T) {
	t.Parallel()
	_, err := Find(source(nil, map[string]string{"/var/lib/rik/data/config.yaml": "denied"}))
	var denied *DeniedError
	if !errors.As(err, &denied) {
		t.Fatalf("Find() = %v, want a DeniedError", err)
	}
	want := "mkdir -p /home/ada/.rik && sudo install -m 600 -o \"$(id -un)\" /var/lib/rik/data/config.yaml /home/ada/.rik/config.yaml"
	if !strings.Contains(denied.Next(), want) {
		t.Errorf("Next() = %q, want %q in it", denied.Next(), want)
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Error("the error does not wrap its cause")
	}
}

func TestMaterial(t *testing.T) {
	t.Parallel()
	encoded := base64.StdEncoding.EncodeToString([]byte(pemText))
	files := map[string]string{
		"/home/ada/.rik/ca.crt": pemText, "/home/ada/certs/ca.crt": pemText, "/abs/ca.crt": pemText,
		"/home/ada/.rik/token": "secret\n",
	}
	for _, form := range []string{pemText, encoded, encoded[:20] + "\n" + encoded[20:], "ca.crt", "~/certs/ca.crt", "/abs/ca.crt"} {
		got, err := source(nil, files).material(form, "/home/ada/.rik", "f")
		if err != nil || string(got) != pemText {
			t.Errorf("material(%q) = %q, %v; want the PEM", form, got, err)
		}
	}
	for form, want := range map[string]string{"abc.def": "abc.def", "": "", "./token": "secret", "/home/ada/.rik/token": "secret"} {
		got, err := source(nil, files).token(form, "/home/ada/.rik")
		if err != nil || got != want {
			t.Errorf("token(%q) = %q, %v; want %q", form, got, err, want)
		}
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	a, b := Cluster{Name: "a", Server: "https://a"}, Cluster{Name: "b", Server: "https://b"}
	file := File{}.With(a).With(b)
	if diff := cmp.Diff(File{Cluster: a, Clusters: []Cluster{a, b}}, file); diff != "" {
		t.Errorf("With (-want +got):\n%s", diff)
	}
	used, err := file.Using("b")
	if err != nil || !cmp.Equal(used.Cluster, b) {
		t.Errorf("Using(b) = %v, %v", used.Cluster, err)
	}
	if _, err := file.Using("c"); err == nil {
		t.Error("Using(c) = nil, want an error")
	}
	alone, err := File{Cluster: a}.With(b).Using("a")
	if err != nil || len(alone.Clusters) != 2 {
		t.Errorf("a cluster that was alone in the file is lost: %v, %v", alone, err)
	}
	a.Server = "https://a2"
	if got := file.With(a); got.Cluster.Server != "https://a2" || len(got.Clusters) != 2 {
		t.Errorf("With a known name = %v, want it replaced", got)
	}
}

func TestRedacted(t *testing.T) {
	t.Parallel()
	c := Cluster{Name: "a", ClientKey: pemText, Token: "secret", ClientCertificate: pemText, CertificateAuthority: "/ca.crt"}
	got := File{Cluster: c, Clusters: []Cluster{c}}.Redacted()
	want := Cluster{Name: "a", ClientKey: "REDACTED", Token: "REDACTED", ClientCertificate: "DATA+OMITTED", CertificateAuthority: "/ca.crt"}
	if diff := cmp.Diff(File{Cluster: want, Clusters: []Cluster{want}}, got); diff != "" {
		t.Errorf("Redacted (-want +got):\n%s", diff)
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "config.yaml")
	want := File{}.With(Cluster{Name: "a", Server: "https://a", Token: "secret"})
	for range 2 {
		if err := Write(path, want); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v; want 0600", info.Mode(), err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(path, data)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("read back: %v (-want +got):\n%s", err, diff)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, want 1 (%v)", len(entries), err)
	}
}

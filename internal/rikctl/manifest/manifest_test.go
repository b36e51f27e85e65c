package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestDecodeWorkload(t *testing.T) {
	t.Parallel()
	const object = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n"
	tests := []struct{ name, text, want, err string }{
		{"of today", object, "shop/a", ""},
		{"with a namespace", strings.Replace(object, "name: a}", "name: a, namespace: other}", 1), "other/a", ""},
		{"published", `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[{"name":"a","image":"b"}]}}`, "shop/a", ""},
		{"unknown field", strings.Replace(object, "image: b", "imag: b", 1), "", `f.yaml: unknown field "spec.containers[0].imag"`},
		{"two unknown fields", strings.Replace(object, "image: b", "imag: b, x: 1", 1), "", "spec.containers[0].x"},
		{"published, unknown field", `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[{"name":"a","image":"b","x":1}]}}`, "", "spec.containers[0].x"},
		{"wrong type", strings.Replace(object, "{containers:", "{replicas: many, containers:", 1), "", "replicas"},
		{"another kind", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "", "kind: ConfigMap is not a Workload"},
		{"an unknown kind", "apiVersion: rik.dev/v1alpha1\nkind: Work\n", "", "unknown type"},
		{"no kind", "a: b\n", "", "apiVersion and kind: required"},
		{"no YAML", "a: [", "", "f.yaml"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, err := DecodeWorkload(Document{"f.yaml", []byte(tc.text)}, "shop")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error = %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := w.Namespace + "/" + w.Name; got != tc.want {
				t.Errorf("decodeWorkload() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestReadDocuments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"b.yaml": "a: 1\n---\n# nothing\n---\na: 2\n", "a.json": `{"a": 0}`, "notes.txt": "a: 9\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read([]string{dir, "-"}, strings.NewReader("a: 3\n"))
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for _, d := range got {
		sources = append(sources, strings.TrimPrefix(d.Source, dir+"/"))
	}
	want := []string{"a.json", "b.yaml (document 1)", "b.yaml (document 2)", "-"}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("readDocuments (-want +got):\n%s", diff)
	}
	if _, err := Read([]string{"-"}, strings.NewReader("# nothing\n")); err == nil {
		t.Error("readDocuments of nothing = nil, want an error")
	}
	if _, err := Read([]string{filepath.Join(dir, "gone")}, nil); err == nil {
		t.Error("readDocuments of a missing file = nil, want an error")
	}
}

func TestFromDeployment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file string
		want rikv1alpha1.App
		err  string
	}{
		"published": {nginxFile, rikv1alpha1.App{Repo: "https://example.com/nginx-{version}", Version: "1.19.1", Command: []string{"./nginx"}}, ""},
		"a directory without action": {"name: site\nrepo: /usr/share/nginx/html\ncommand: [/bin/busybox, httpd, -f]\n",
			rikv1alpha1.App{Repo: "/usr/share/nginx/html", Command: []string{"/bin/busybox", "httpd", "-f"}}, ""},
		"with ours": {"{name: a, repo: /srv/a, args: [x], user: www, ports: [{port: 80}], env: [{name: A, value: b}]}",
			rikv1alpha1.App{
				Repo: "/srv/a", Command: []string{"./a"}, Args: []string{"x"}, User: "www",
				Ports: []rikv1alpha1.Port{{Port: 80}}, Env: []rikv1alpha1.EnvVar{{Name: "A", Value: "b"}},
			}, ""},
		"another action":       {"{name: a, repo: /a, action: destroy}", rikv1alpha1.App{}, `action: unknown action "destroy"`},
		"no name":              {"{repo: /a}", rikv1alpha1.App{}, "name: required"},
		"no repo":              {"{name: a, action: deploy}", rikv1alpha1.App{}, "repo: required"},
		"a name with a path":   {"{name: ../a, repo: /a}", rikv1alpha1.App{}, "name: "},
		"an unknown field":     {"{name: a, repo: /a, edition: 1}", rikv1alpha1.App{}, "edition"},
		"a list for a name":    {"{name: [a], repo: /a}", rikv1alpha1.App{}, "name"},
		"metadata with a list": {"{name: a, repo: /a, metadata: {x: [1]}}", rikv1alpha1.App{}, "metadata"},
		"metadata of no name":  {"{name: a, repo: /a, metadata: {'a b': c}}", rikv1alpha1.App{}, "metadata.a b"},
		"twice the same field": {"name: a\nrepo: /a\nrepo: /b\n", rikv1alpha1.App{}, "repo"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !IsDeployment([]byte(tc.file)) {
				t.Fatal("it is not taken for a deployment file")
			}
			w, err := FromDeployment(Document{"file", []byte(tc.file)}, "default")
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("fromDeployment() = %v, want an error with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tc.want, w.Spec.App); diff != "" {
				t.Errorf("app (-want +got):\n%s", diff)
			}
			if w.Spec.RestartPolicy != rikv1alpha1.RestartOnFailure || w.Spec.Deploy != rikv1alpha1.DeployAutomatic {
				t.Errorf("it restarts %s and is deployed %s", w.Spec.RestartPolicy, w.Spec.Deploy)
			}
		})
	}
	for _, other := range []string{"apiVersion: v0\nkind: Pod\nname: a\nrepo: /a\n", "kind: X\naction: deploy\n", "a", "[]", "{name: a}"} {
		if IsDeployment([]byte(other)) {
			t.Errorf("%q is taken for a deployment file", other)
		}
	}
}

// nginxFile is the deployment file of the published design, corrected where the original is
// ambiguous: it named two places as one, and a version that neither of them used.
const nginxFile = `name: nginx
repo: https://example.com/nginx-{version}
version: 1.19.1
action: deploy
metadata:
    name: app1
`

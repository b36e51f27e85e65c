package crdpuller

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

func widget() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.dev"},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.dev"},
		Status:     apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}},
	}
}

// TestWriteFiles tests that each CRD has a file, which contains nothing that only a server sets.
func TestWriteFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	r := Result{CRDs: []*apiextensionsv1.CustomResourceDefinition{widget()}}
	var out bytes.Buffer
	if err := r.WriteFiles(dir, &out); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "widgets.example.dev.yaml")
	if out.String() != path+"\n" {
		t.Errorf("WriteFiles() printed %q, want %q", out.String(), path)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := yaml.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	if _, found := object["status"]; found || object["kind"] != "CustomResourceDefinition" || object["spec"] == nil {
		t.Errorf("the file contains %s", raw)
	}
	if err := r.WriteFiles(path, &out); err == nil {
		t.Error("WriteFiles() wrote into a file")
	}
}

func TestWriteProblems(t *testing.T) {
	t.Parallel()
	r := Result{
		Problems:  []Problem{{Resource: schema.GroupVersionResource{Group: "example.dev", Version: "v1", Resource: "widgets"}, Err: errors.New("it is recursive")}},
		NotServed: []string{"gadgets.example.dev"},
		Unknown:   []schema.GroupVersion{{Group: "example.org", Version: "v1"}},
	}
	var out bytes.Buffer
	r.WriteProblems("crd-puller", &out)
	want := "crd-puller: left out widgets.example.dev: it is recursive\n" +
		"crd-puller: the cluster does not serve gadgets.example.dev\n" +
		"crd-puller: the cluster did not return the types of example.org/v1\n"
	if out.String() != want {
		t.Errorf("WriteProblems() printed\n%s\nwant\n%s", out.String(), want)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	found := []*apiextensionsv1.CustomResourceDefinition{widget()}
	problem := []Problem{{Err: errors.New("it is recursive")}}
	for name, tc := range map[string]struct {
		names  []string
		result Result
		want   error
	}{
		"found":              {[]string{"widgets"}, Result{CRDs: found}, nil},
		"found with another": {[]string{"widgets"}, Result{CRDs: found, NotServed: []string{"gadgets"}}, nil},
		"nothing found":      {[]string{"widgets"}, Result{}, ErrPartly},
		"left out":           {[]string{"widgets"}, Result{CRDs: found, Problems: problem}, ErrPartly},
		"left out of all":    {nil, Result{CRDs: found, Problems: problem}, nil},
		"nothing of all":     {nil, Result{}, nil},
	} {
		if err := tc.result.Missing(tc.names); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
			t.Errorf("%s: Missing(%q) = %v, want %v", name, tc.names, err, tc.want)
		}
	}
}

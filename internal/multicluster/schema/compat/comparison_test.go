package compat_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"golang.org/x/tools/txtar"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/schema/compat"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestComparison compares the inputs of testdata/comparison. The comment of an archive
// describes the case. args is the command line, and in is the standard input. exit, stdout and
// stderr are the expected results.
func TestComparison(t *testing.T) {
	files, err := filepath.Glob("testdata/comparison/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		file, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { checkComparison(t, file) })
	}
}

func checkComparison(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	inputs := map[string][]byte{}
	want := &txtar.Archive{Comment: archive.Comment}
	for _, f := range archive.Files {
		switch f.Name {
		case "exit", "stdout", "stderr":
			continue
		}
		inputs[f.Name] = f.Data
		want.Files = append(want.Files, f)
	}
	t.Chdir(t.TempDir())
	for name, data := range inputs {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := runCompat(t, inputs["in"], strings.Fields(string(inputs["args"]))...)
	got := *want
	got.Files = append(got.Files, txtar.File{Name: "exit", Data: []byte(strconv.Itoa(code) + "\n")})
	for _, out := range []txtar.File{{Name: "stdout", Data: stdout}, {Name: "stderr", Data: stderr}} {
		if len(out.Data) > 0 {
			got.Files = append(got.Files, out)
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(&got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(before), string(txtar.Format(&got))); diff != "" {
		t.Errorf("compat %s (-want +got):\n%s", inputs["args"], diff)
	}
}

// runCompat runs a comparison as the command compat does.
func runCompat(t *testing.T, in []byte, args ...string) (code int, stdout, stderr []byte) {
	t.Helper()
	var out, complaints bytes.Buffer
	c := compat.Comparison{In: bytes.NewReader(in), Out: &out, Complaints: &complaints}
	flags := pflag.NewFlagSet("compat", pflag.ContinueOnError)
	flags.BoolVar(&c.LCD, "lcd", false, "")
	flags.StringVarP(&c.Format, "output", "o", compat.FormatText, "")
	if err := flags.Parse(args); err != nil || flags.NArg() != 2 {
		t.Fatalf("the case has the arguments %q: %v", args, err)
	}
	c.Old, c.New = flags.Arg(0), flags.Arg(1)
	err := c.Run()
	if err != nil {
		complaints.WriteString("compat: " + err.Error() + "\n")
	}
	return compat.ExitCode(err), out.Bytes(), complaints.Bytes()
}

// TestDenominators tests that the output of --lcd is a CRD that an API server accepts, and
// that is compatible with both inputs.
func TestDenominators(t *testing.T) {
	files, err := filepath.Glob("testdata/comparison/lcd*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	written := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		for _, f := range archive.Files {
			if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		before, after := filepath.Join(dir, "old.yaml"), filepath.Join(dir, "new.yaml")
		code, lcd, _ := runCompat(t, nil, before, after, "--lcd")
		if code != 0 {
			continue
		}
		written++
		checkCRD(t, file, lcd)
		for _, other := range []string{before, after} {
			// A missing version does not affect the comparison of schemas.
			if code, out, complaints := runCompat(t, lcd, "-", other); code != 0 {
				t.Errorf("%s: compat LCD %s = %d:\n%s%s", file, filepath.Base(other), code, out, complaints)
			}
		}
	}
	if written < 2 {
		t.Errorf("%d CRDs were written, want two or more", written)
	}
}

// checkCRD applies the validation of Kubernetes for a new CRD.
func checkCRD(t *testing.T, name string, raw []byte) {
	t.Helper()
	crd, internal := &apiextensionsv1.CustomResourceDefinition{}, &apiextensions.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(raw, crd); err != nil {
		t.Fatalf("%s: decoding the CRD: %v", name, err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil); err != nil {
		t.Fatalf("%s: converting the CRD: %v", name, err)
	}
	internal.Status.StoredVersions = []string{storageOf(crd)}
	if errs := validation.ValidateCustomResourceDefinition(t.Context(), internal); len(errs) > 0 {
		t.Errorf("%s: the CRD is not valid: %v", name, errs.ToAggregate())
	}
}

func storageOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Storage {
			return crd.Spec.Versions[i].Name
		}
	}
	return ""
}

package multicluster

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/testkit/kube"
)

// pull runs the command as a user does.
func pull(t *testing.T, args ...string) (out, complaints string, err error) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, kube.Shared(t).Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	c := crdPullerCommand()
	c.AddCommand(&cobra.Command{Use: "version"}) // every program has this command
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetArgs(append([]string{"--kubeconfig", kubeconfig}, args...))
	err = c.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

func TestCRDPullerWritesFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	out, complaints, err := pull(t, "--output", dir, "deployments.apps", "services", "nothing.example.dev")
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[string]string{"deployments.apps.yaml": "Deployment", "services.core.yaml": "Service"} {
		path := filepath.Join(dir, name)
		if !strings.Contains(out, path+"\n") {
			t.Errorf("output %q does not name %s", out, path)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(raw, &crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if crd.Kind != "CustomResourceDefinition" || crd.Spec.Names.Kind != kind || crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Type != "object" {
			t.Errorf("%s holds a %s of %s without a schema", name, crd.Kind, crd.Spec.Names.Kind)
		}
		if strings.Contains(string(raw), "\nstatus:") || strings.Contains(string(raw), "creationTimestamp: null") {
			t.Errorf("%s contains fields that only a server sets", name)
		}
	}
	if want := "does not serve nothing.example.dev"; !strings.Contains(complaints, want) {
		t.Errorf("complaints %q, want one that it %s", complaints, want)
	}
}

func TestCRDPullerWritesAllTypes(t *testing.T) {
	dir := t.TempDir()
	_, complaints, err := pull(t, "-o", dir)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) < 50 {
		t.Errorf("%d files, %v, want one for each of Kubernetes' types", len(files), err)
	}
	if want := "left out customresourcedefinitions.apiextensions.k8s.io: "; !strings.Contains(complaints, want) {
		t.Errorf("complaints %q, want %q", complaints, want)
	}
}

func TestCRDPullerFails(t *testing.T) {
	dir := t.TempDir()
	for name, args := range map[string][]string{
		"recursive type by name": {"-o", dir, "configmaps", "customresourcedefinitions.apiextensions.k8s.io"},
		"nothing served":         {"-o", dir, "nothing.example.dev"},
		"unknown context":        {"-o", dir, "--context", "no-such"},
		"output is a file":       {"-o", os.Args[0], "configmaps"},
	} {
		if _, _, err := pull(t, args...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "configmaps.core.yaml")); err != nil {
		t.Errorf("the other type than the recursive one: %v", err)
	}
}

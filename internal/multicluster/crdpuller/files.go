package crdpuller

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// ErrPartly means that a type that was requested by name is missing.
var ErrPartly = errors.New("not all requested types were written")

// WriteFiles writes one YAML file for each CRD into a directory, and creates the directory if
// necessary. It prints the path of each file to out.
func (r *Result) WriteFiles(dir string, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("creating the directory for the files: %w", err)
	}
	for _, crd := range r.CRDs {
		raw, err := manifest(crd)
		if err != nil {
			return fmt.Errorf("writing %s as YAML: %w", crd.Name, err)
		}
		path := filepath.Join(dir, crd.Name+".yaml")
		if err := os.WriteFile(path, raw, 0o644); err != nil {
			return fmt.Errorf("writing the CRD %s: %w", crd.Name, err)
		}
		fmt.Fprintln(out, path)
	}
	return nil
}

// manifest returns a CRD as YAML, without the fields that only a server sets.
func manifest(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		return nil, err
	}
	delete(object, "status")
	return yaml.Marshal(object)
}

// WriteProblems prints what was left out, and why. Each line starts with the name of the program.
func (r *Result) WriteProblems(program string, out io.Writer) {
	for _, problem := range r.Problems {
		fmt.Fprintf(out, "%s: left out %s\n", program, problem)
	}
	for _, name := range r.NotServed {
		fmt.Fprintf(out, "%s: the cluster does not serve %s\n", program, name)
	}
	for _, gv := range r.Unknown {
		fmt.Fprintf(out, "%s: the cluster did not return the types of %s\n", program, gv)
	}
}

// Missing returns ErrPartly if a type of the given names is missing. Without names, all types that
// can be read are enough.
func (r *Result) Missing(names []string) error {
	if len(names) > 0 && (len(r.Problems) > 0 || len(r.CRDs) == 0) {
		return ErrPartly
	}
	return nil
}

// Package manifest reads the files of a command line: objects of rik, definitions in the published
// form, and deployment files. It decodes them without a server and reports mistakes with the name
// of the file and the field.
package manifest

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/quantity"
	v0 "rik.dev/rik/api/rik/v0"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/api/strictdecode"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/scheme"
)

// Document is one object of a file, not yet decoded.
type Document struct {
	// source is the file, with the number of the document if the file has several.
	Source string
	Data   []byte
}

// manifestSuffixes lists the suffixes of the files that are read in a directory.
var manifestSuffixes = []string{".yaml", ".yml", ".json"}

// Read reads files, directories and "-" for the standard input.
func Read(paths []string, stdin io.Reader) ([]Document, error) {
	var all []Document
	for _, path := range paths {
		files, err := expand(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			data, err := readManifest(file, stdin)
			if err != nil {
				return nil, err
			}
			documents, err := split(file, data)
			if err != nil {
				return nil, err
			}
			all = append(all, documents...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no object in %s", strings.Join(paths, ", "))
	}
	return all, nil
}

func readManifest(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(stdin)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, clierror.File(err)
	}
	return data, nil
}

func expand(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, clierror.File(err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, clierror.File(err)
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && slices.Contains(manifestSuffixes, filepath.Ext(e.Name())) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// split separates the documents of a YAML stream. JSON is one document.
func split(file string, data []byte) ([]Document, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	var documents []Document
	for {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", file, err)
		}
		if !isEmpty(part) {
			documents = append(documents, Document{Source: file, Data: bytes.Clone(part)})
		}
	}
	if len(documents) > 1 {
		for i := range documents {
			documents[i].Source = fmt.Sprintf("%s (document %d)", file, i+1)
		}
	}
	return documents, nil
}

// isEmpty reports whether a document has only comments.
func isEmpty(data []byte) bool {
	var any any
	return yaml.Unmarshal(data, &any) == nil && any == nil
}

// DecodeWorkloads reads all documents as DecodeWorkload does. The error has the problems of all.
func DecodeWorkloads(documents []Document, namespace string) ([]*rikv1alpha1.Workload, error) {
	var workloads []*rikv1alpha1.Workload
	var problems []error
	for _, d := range documents {
		w, err := DecodeWorkload(d, namespace)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		workloads = append(workloads, w)
	}
	return workloads, errors.Join(problems...)
}

// DecodeWorkload reads a Workload, a definition in the published form or a
// deployment file.
func DecodeWorkload(d Document, namespace string) (*rikv1alpha1.Workload, error) {
	if IsDeployment(d.Data) {
		return FromDeployment(d, namespace)
	}
	if v0.Matches(d.Data) {
		return FromPublished(d, namespace)
	}
	obj, err := DecodeStrict(d)
	if err != nil {
		return nil, err
	}
	w, ok := obj.(*rikv1alpha1.Workload)
	if !ok {
		return nil, clierror.InvalidError{Source: d.Source, Err: fmt.Errorf("kind: %s is not a Workload; \"rikctl apply -f\" accepts any kind",
			obj.GetObjectKind().GroupVersionKind().Kind)}
	}
	w.Namespace = cmp.Or(w.Namespace, namespace)
	return w, nil
}

// FromPublished converts a workload in the format of the published RIK. It uses namespace if the
// document names none.
func FromPublished(d Document, namespace string) (*rikv1alpha1.Workload, error) {
	definition, err := v0.Decode(d.Data)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	w, problems := v0.ToWorkload(definition, namespace)
	if len(problems) > 0 {
		return nil, clierror.InvalidError{Source: d.Source, Err: problems.ToAggregate()}
	}
	return w, nil
}

// DecodeStrict decodes an object of a known type. An unknown field is an error with its path. It
// reports all such errors at once.
func DecodeStrict(d Document) (runtime.Object, error) {
	data, err := yaml.YAMLToJSONStrict(d.Data)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	gvk, err := KindOf(data)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	obj, err := scheme.Scheme.New(gvk)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: unknownKind(gvk)}
	}
	// Check quantities before decoding.
	if err := quantity.CheckJSON(data); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	if err := strictdecode.Join(strictdecode.Check(data, obj)); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	problems, err := kjson.UnmarshalStrict(data, obj)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	if len(problems) > 0 {
		return nil, clierror.InvalidError{Source: d.Source, Err: errors.Join(problems...)}
	}
	return obj, nil
}

// KindOf returns the kind of a document in YAML or JSON.
func KindOf(data []byte) (schema.GroupVersionKind, error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := strictdecode.Join(strictdecode.Check(data, &head)); err != nil {
		return schema.GroupVersionKind{}, err
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &head); err != nil {
		return schema.GroupVersionKind{}, err
	}
	if head.APIVersion == "" || head.Kind == "" {
		return schema.GroupVersionKind{}, errors.New("apiVersion and kind: required")
	}
	gv, err := schema.ParseGroupVersion(head.APIVersion)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return gv.WithKind(head.Kind), nil
}

// ErrUnknownKind marks a type that only a server can validate.
var ErrUnknownKind = errors.New("unknown type")

func unknownKind(gvk schema.GroupVersionKind) error {
	return fmt.Errorf("apiVersion %s, kind %s: %w", gvk.GroupVersion(), gvk.Kind, ErrUnknownKind)
}

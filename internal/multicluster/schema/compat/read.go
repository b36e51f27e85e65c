package compat

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/multicluster/schema"
)

// Read reads a stream that contains exactly one CRD, as YAML or JSON. It is strict.
func Read(in io.Reader) (*apiextensionsv1.CustomResourceDefinition, error) {
	document, err := onlyDocument(in)
	if err != nil {
		return nil, err
	}
	return decode(document)
}

// maxFile is the maximum size of a stream in bytes. It is more than any API server accepts.
const maxFile = 16 << 20

// onlyDocument returns the single document of a stream. It returns an error for a stream that
// exceeds the limit.
func onlyDocument(in io.Reader) ([]byte, error) {
	limited := &io.LimitedReader{R: in, N: maxFile + 1}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(limited))
	var only []byte
	found := 0
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading: %w", err)
		}
		if says(document) {
			only, found = document, found+1
		}
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("it has more than %d bytes, the limit for a CRD", maxFile)
	}
	switch found {
	case 0:
		return nil, errors.New("it is empty")
	case 1:
		return only, nil
	default:
		return nil, fmt.Errorf("it contains %d documents: use a file with one CRD", found)
	}
}

// says reports whether a document contains more than comments.
func says(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return true
		}
	}
	return false
}

// decode is strict, because an unknown keyword would not be compared.
func decode(document []byte) (*apiextensionsv1.CustomResourceDefinition, error) {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return nil, fmt.Errorf("it is not an object in YAML or JSON: %w", err)
	}
	if kind.APIVersion == "" || kind.Kind == "" {
		return nil, errors.New("it has no apiVersion and kind, so it is not a CRD")
	}
	if want := apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"); kind.GroupVersionKind() != want {
		return nil, fmt.Errorf("it contains a %s of %s, not a %s of %s", kind.Kind, kind.APIVersion, want.Kind, want.GroupVersion())
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(document, crd); err != nil {
		return nil, fmt.Errorf("decoding the CRD: %w", err)
	}
	if crd.Spec.PreserveUnknownFields {
		return nil, errors.New("spec.preserveUnknownFields is true: such a CRD keeps fields that are not in its schemas, so it cannot be compared")
	}
	return crd, nil
}

// sameType rejects CRDs of different types.
func sameType(before, after *apiextensionsv1.CustomResourceDefinition) error {
	var differs []error
	for _, fact := range []struct{ name, old, new string }{
		{"group", before.Spec.Group, after.Spec.Group},
		{"kind", before.Spec.Names.Kind, after.Spec.Names.Kind},
		{"plural", before.Spec.Names.Plural, after.Spec.Names.Plural},
		{"scope", string(before.Spec.Scope), string(after.Spec.Scope)},
	} {
		if fact.old != fact.new {
			differs = append(differs, fmt.Errorf("they are different types: the %s is %q in OLD and %q in NEW", fact.name, fact.old, fact.new))
		}
	}
	return errors.Join(differs...)
}

// offersOf returns an offer for each version that a CRD serves.
func offersOf(in Input, location string) (map[string]schema.Offer, error) {
	crd, file := in.CRD, in.File
	offers := map[string]schema.Offer{}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if !v.Served {
			continue
		}
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return nil, fmt.Errorf("%s: version %s has no schema", file, v.Name)
		}
		spec, err := plan.SpecOf(crd, v.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: version %s: %w", file, v.Name, err)
		}
		offers[v.Name] = schema.Offer{Location: location, Spec: *spec}
		if err := schema.Check(offers[v.Name]); err != nil {
			return nil, fmt.Errorf("%s: version %s: %w", file, v.Name, err)
		}
	}
	if len(offers) == 0 {
		return nil, fmt.Errorf("%s: it serves no version", file)
	}
	return offers, nil
}

package crdpuller

import (
	"cmp"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// fewTypes is the number of types up to which CRDs are read one by one. For more, all CRDs
	// are listed.
	fewTypes = 16
	// pageSize is the number of CRDs in one page of a list. Some CRDs have a megabyte.
	pageSize = 50
)

// definitions are a cluster's CRDs, as far as they could be read.
type definitions struct {
	byName map[string]*apiextensionsv1.CustomResourceDefinition
	// failed contains the errors of CRDs that could not be read. unlisted is the error of the
	// list, which may concern any CRD.
	failed   map[string]error
	unlisted error
}

// of returns the CRD of a type, or nil if the type is not a CRD.
func (d definitions) of(t servedType) (*apiextensionsv1.CustomResourceDefinition, error) {
	name := t.crdName()
	if found, ok := d.byName[name]; ok {
		return found, nil
	}
	err := cmp.Or(d.failed[name], d.unlisted)
	if apierrors.IsForbidden(err) && scheme.Scheme.Recognizes(t.kind) {
		// For built-in types of Kubernetes, OpenAPI contains the same information.
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CRD %s: %w", name, err)
	}
	return nil, nil
}

// definitions reads the CRDs of the types. An error is a problem of its type.
func (s *session) definitions(types []servedType) definitions {
	d := definitions{byName: map[string]*apiextensionsv1.CustomResourceDefinition{}, failed: map[string]error{}}
	if len(types) > fewTypes {
		d.unlisted = s.listDefinitions(d.byName)
		return d
	}
	for _, t := range types {
		name := t.crdName()
		found, err := s.extensions.ApiextensionsV1().CustomResourceDefinitions().Get(s.ctx, name, metav1.GetOptions{})
		switch {
		case err == nil:
			d.byName[name] = found
		case !apierrors.IsNotFound(err):
			d.failed[name] = err
		}
	}
	return d
}

// listDefinitions keeps what it has read before an error. A cluster without the CRD API has no
// CRDs.
func (s *session) listDefinitions(byName map[string]*apiextensionsv1.CustomResourceDefinition) error {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := s.extensions.ApiextensionsV1().CustomResourceDefinitions().List(s.ctx, options)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range page.Items {
			byName[page.Items[i].Name] = &page.Items[i]
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

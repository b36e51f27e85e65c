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
	// fewTypes are asked for one by one; for more, all CRDs are listed.
	fewTypes = 16
	// pageSize of a list of CRDs, some of which have a megabyte.
	pageSize = 50
)

// definitions are a cluster's CRDs, as far as they could be read.
type definitions struct {
	byName map[string]*apiextensionsv1.CustomResourceDefinition
	// failed says why one could not be read, and unlisted why that may be any.
	failed   map[string]error
	unlisted error
}

// of returns nil for a type that is no CRD.
func (d definitions) of(t servedType) (*apiextensionsv1.CustomResourceDefinition, error) {
	name := t.crdName()
	if found, ok := d.byName[name]; ok {
		return found, nil
	}
	err := cmp.Or(d.failed[name], d.unlisted)
	if apierrors.IsForbidden(err) && scheme.Scheme.Recognizes(t.kind) {
		// Of what Kubernetes has built in, OpenAPI says as much.
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the CRD %s: %w", name, err)
	}
	return nil, nil
}

// definitions reads the CRDs of the types. What cannot be read is a problem of its type.
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

// listDefinitions also keeps what it read before an error. A cluster without CRDs has none.
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

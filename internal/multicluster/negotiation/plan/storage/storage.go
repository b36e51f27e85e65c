// Package storage reads the stored objects of a type that a CRD serves, for the questions of
// package plan. It writes nothing.
package storage

import (
	"context"
	"fmt"
	"iter"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// page is the number of objects in one page of a list.
const page = 500

// Objects are the objects of one type in every namespace.
type Objects struct {
	client dynamic.ResourceInterface
}

// Of returns the objects of a CRD in the storage version, because only that version has all their
// fields. It returns an error if the CRD does not serve that version.
func Of(client dynamic.Interface, crd *apiextensionsv1.CustomResourceDefinition) (*Objects, error) {
	for i := range crd.Spec.Versions {
		if v := &crd.Spec.Versions[i]; v.Storage && v.Served {
			gvr := schema.GroupVersionResource{Group: crd.Spec.Group, Version: v.Name, Resource: crd.Spec.Names.Plural}
			return &Objects{client: client.Resource(gvr)}, nil
		}
	}
	return nil, fmt.Errorf("CRD %s does not serve its storage version, so its stored objects cannot be read: set served of that version to true", crd.Name)
}

// All reads every object. After an error it stops.
func (o *Objects) All(ctx context.Context) iter.Seq2[*unstructured.Unstructured, error] {
	return func(yield func(*unstructured.Unstructured, error) bool) {
		options := metav1.ListOptions{Limit: page}
		for {
			list, err := o.client.List(ctx, options)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range list.Items {
				if !yield(&list.Items[i], nil) {
					return
				}
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				return
			}
		}
	}
}

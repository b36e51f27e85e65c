package crdpuller

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/openapi"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// kindExtension is the extension of a model that contains its kinds.
const kindExtension = "x-kubernetes-group-version-kind"

// documents are the OpenAPI documents of a cluster. Version 3 has one for each group and version.
// Version 2 has one for all.
type documents struct {
	byPath map[string]openapi.GroupVersion
	second *source
	err    error
}

// source is the source of the models of a group and version.
type source struct {
	// address contains a hash of the content. It is empty if the server provides no hash.
	address string
	fetch   func() (map[string]*spec.Schema, error)

	fetched bool
	models  map[string]*spec.Schema
	err     error
}

// is reports whether the content at an address is the same as in this source.
func (s *source) is(address string) bool { return s.address != "" && s.address == address }

// convert returns the structural schema of a kind.
func (s *source) convert(kind schema.GroupVersionKind) (*apiextensionsv1.JSONSchemaProps, error) {
	if !s.fetched {
		s.models, s.err = s.fetch()
		s.fetched = true
	}
	if s.err != nil {
		return nil, s.err
	}
	for name, model := range s.models {
		if describes(model, kind) {
			return structural(s.models, name)
		}
	}
	return nil, ErrNoModel
}

// describes reports whether a model describes objects of the kind.
func describes(model *spec.Schema, kind schema.GroupVersionKind) bool {
	var kinds []schema.GroupVersionKind
	if model == nil || model.Extensions.GetObject(kindExtension, &kinds) != nil {
		return false
	}
	_, isObject := model.Properties["metadata"]
	return isObject && slices.Contains(kinds, kind)
}

// source returns the source of a group and version.
func (s *session) source(gv schema.GroupVersion) *source {
	if s.documents == nil {
		s.documents = s.index()
	}
	d := s.documents
	switch {
	case d.err != nil:
		return &source{fetch: func() (map[string]*spec.Schema, error) { return nil, d.err }}
	case d.second != nil:
		return d.second
	}
	path := "apis/" + gv.String()
	if gv.Group == "" {
		path = "api/" + gv.Version
	}
	document, ok := d.byPath[path]
	if !ok {
		return &source{fetch: func() (map[string]*spec.Schema, error) { return nil, ErrNoModel }}
	}
	return &source{address: hashed(document.ServerRelativeURL()), fetch: func() (map[string]*spec.Schema, error) { return third(document) }}
}

// index reads which documents exist.
func (s *session) index() *documents {
	byPath, err := s.discovery.OpenAPIV3().Paths()
	switch {
	case apierrors.IsNotFound(err):
		return &documents{second: &source{fetch: s.secondVersion}}
	case err != nil:
		return &documents{err: fmt.Errorf("listing the OpenAPI documents: %w", err)}
	default:
		return &documents{byPath: byPath}
	}
}

// hashed returns the address if it contains a hash of the content, and otherwise an empty string.
func hashed(address string) string {
	if u, err := url.Parse(address); err != nil || u.Query().Get("hash") == "" {
		return ""
	}
	return address
}

// third reads the models of a document of version 3.
func third(document openapi.GroupVersion) (map[string]*spec.Schema, error) {
	raw, err := document.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, fmt.Errorf("reading an OpenAPI document: %w", err)
	}
	var parsed struct {
		Components struct {
			Schemas map[string]*spec.Schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return nil, fmt.Errorf("parsing an OpenAPI document: %w", err)
	}
	return parsed.Components.Schemas, nil
}

// secondVersion reads the models of the document of version 2.
func (s *session) secondVersion() (map[string]*spec.Schema, error) {
	raw, err := s.discovery.RESTClient().Get().AbsPath("/openapi/v2").SetHeader("Accept", runtime.ContentTypeJSON).Do(s.ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("reading the OpenAPI document: %w", err)
	}
	var parsed struct {
		Definitions map[string]*spec.Schema `json:"definitions"`
	}
	if err := json.Unmarshal(raw, &parsed); err != nil {
		return nil, fmt.Errorf("parsing the OpenAPI document: %w", err)
	}
	return parsed.Definitions, nil
}

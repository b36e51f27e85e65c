// Package crdpuller describes the types that a cluster serves as CRDs. It copies the cluster's
// CRDs, and converts built-in types from the cluster's OpenAPI document.
//
// A [Puller] reads one cluster. [Puller.Pull] reads discovery, the CRDs and OpenAPI each time, so
// that it notices a changed schema. [Puller.Changes] reports when another Pull may be worthwhile.
// The package writes nothing to the cluster. It does not trust the cluster: responses are limited
// in size, and an error in one type's description is a [Problem] of that type only.
//
// Pure functions determine what is served (catalog.go), convert a model to a structural schema
// (structural.go), and convert a schema to a CRD (definition.go).
package crdpuller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/bounded"
)

// The errors in a [Problem], in addition to errors of the cluster.
var (
	// ErrNoModel: the cluster's OpenAPI document does not describe the type.
	ErrNoModel = errors.New("the cluster's OpenAPI document does not describe the type")
	// ErrRecursive: the type contains itself, which a CRD cannot describe.
	ErrRecursive = errors.New("the type contains itself, which a CRD cannot describe")
	// ErrNotExpressible: a CRD cannot express a part of the type.
	ErrNotExpressible = errors.New("a CRD cannot express this")
	// ErrTooLarge: a type or a response exceeds the size limit.
	ErrTooLarge = bounded.ErrTooLarge
	// ErrNotWatchable: objects of the type cannot be listed and watched.
	ErrNotWatchable = errors.New("the cluster cannot list and watch objects of the type")
)

// Config is the configuration of a [Puller].
type Config struct {
	// Rest connects to the cluster. It is required. New copies it. The user needs to read
	// discovery and OpenAPI, which every authenticated user may. The user should also be able to
	// get, list and watch customresourcedefinitions and apiservices.
	Rest *rest.Config
	// Skip excludes types, such as those that the control plane itself serves. It is optional.
	Skip func(schema.GroupVersionKind) bool
	// EveryVersion adds the other served versions of a CRD to the preferred one, if their objects
	// can be stored in the preferred version without conversion. For other versions, the
	// annotation apiresourcev1alpha1.VersionsAnnotation contains the reason.
	EveryVersion bool
	// Logger receives messages that are not a Problem. It is required.
	Logger *slog.Logger
}

// Problem is why a type that the cluster serves could not be described.
type Problem struct {
	Resource schema.GroupVersionResource
	Err      error
}

// Result contains the types that a cluster serves.
//
// A type is removed only if it is neither in CRDs nor in Problems, and its group and version are
// not in Unknown.
type Result struct {
	// CRDs are sorted by name, one for each type. The preferred version comes first. The name is
	// PLURAL.GROUP, with core for the core group, which CRDs of a Kubernetes cluster cannot have.
	// The caller owns them.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// Problems are sorted by resource. They are about served types that could not be described.
	Problems []Problem
	// Unknown are the groups and versions that could not be read, such as those of an aggregated
	// API server that is down. Their types must not count as removed.
	Unknown []schema.GroupVersion
	// NotServed are the requested names that the cluster certainly does not serve.
	NotServed []string
}

// Puller reads the types of one cluster. It is safe for concurrent use.
type Puller struct {
	config    Config
	transport http.RoundTripper

	mu sync.Mutex
	// schemas are the converted models of the last Pull, with their sources.
	schemas map[schema.GroupVersionKind]converted
	// answers caches why a version cannot be served next to another one, by a hash of both.
	answers map[[sha256.Size]byte]string
}

// converted is a schema with the address from which it was read. The address contains a hash of
// the content.
type converted struct {
	source string
	schema *apiextensionsv1.JSONSchemaProps
}

// New creates a puller. It does not connect.
func New(config Config) (*Puller, error) {
	if config.Rest == nil {
		return nil, errors.New("a connection to the cluster is required")
	}
	if config.Logger == nil {
		return nil, errors.New("a logger is required")
	}
	config.Rest = rest.CopyConfig(config.Rest)
	if config.Skip == nil {
		config.Skip = func(schema.GroupVersionKind) bool { return false }
	}
	transport, err := rest.TransportFor(config.Rest)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to the cluster: %w", err)
	}
	return &Puller{config: config, transport: transport, answers: map[[sha256.Size]byte]string{}}, nil
}

// Pull describes the types with these names, as PLURAL or PLURAL.GROUP. Without names, it
// describes all types that can be listed and watched. It returns an error and no result if the
// cluster does not answer, or if a required response is incomplete.
func (p *Puller) Pull(ctx context.Context, names ...string) (*Result, error) {
	s, err := p.session(ctx)
	if err != nil {
		return nil, err
	}
	served, err := s.discover()
	if err != nil {
		return nil, err
	}
	chosen := choose(served, names, p.config.Skip)
	result := &Result{Unknown: served.unknown, NotServed: chosen.notServed, Problems: chosen.problems}
	for _, name := range chosen.notServed {
		p.config.Logger.Info("type is not served by the cluster", "type", name)
	}
	p.describe(s, chosen.types, s.definitions(chosen.types), result)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	result.sort()
	return result, nil
}

// describe adds each type to the result, as a CRD or as a problem.
func (p *Puller) describe(s *session, types []servedType, definitions definitions, result *Result) {
	var builtIn []servedType
	for _, t := range types {
		found, err := definitions.of(t)
		switch {
		case err != nil:
			result.problem(t, err)
		case found != nil:
			result.add(t, p.fromDefinition(t, found))
		default:
			builtIn = append(builtIn, t)
		}
	}
	schemas := p.models(s, builtIn, result)
	for _, t := range builtIn {
		if c, ok := schemas[t.kind]; ok {
			result.add(t, fromModel(t, c.schema.DeepCopy()))
		}
	}
}

// models converts the schemas of built-in types. If the cluster's index of documents shows that a
// document has not changed, it uses the schema of the last Pull.
func (p *Puller) models(s *session, types []servedType, result *Result) map[schema.GroupVersionKind]converted {
	p.mu.Lock()
	known := p.schemas
	p.mu.Unlock()
	schemas := map[schema.GroupVersionKind]converted{}
	for _, group := range byGroupVersion(types) {
		source := s.source(group[0].kind.GroupVersion())
		for _, t := range group {
			if c, ok := known[t.kind]; ok && source.is(c.source) {
				schemas[t.kind] = c
				continue
			}
			structural, err := source.convert(t.kind)
			if err != nil {
				result.problem(t, err)
				continue
			}
			schemas[t.kind] = converted{source: source.address, schema: structural}
		}
	}
	p.mu.Lock()
	p.schemas = schemas
	p.mu.Unlock()
	return schemas
}

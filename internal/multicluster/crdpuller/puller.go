// Package crdpuller describes the types that a cluster serves as CRDs: those that are
// CRDs there, and those that are built in, by the cluster's OpenAPI document.
//
// A [Puller] reads one cluster. [Puller.Pull] asks discovery, the CRDs and OpenAPI anew
// each time, so that a changed schema is noticed, and [Puller.Changes] says when asking
// may be worth while. The package writes nothing to the cluster. It trusts the cluster
// as little as any other input: answers are bounded in size, and what one type's
// description does wrong is that type's [Problem] and no other's.
//
// What is served (catalog.go), how a model becomes a structural schema (structural.go)
// and a schema a CRD (definition.go) is decided by pure functions.
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

// What a [Problem] can be about, besides errors of the cluster's answers.
var (
	// ErrNoModel says that the cluster's OpenAPI document does not describe the type.
	ErrNoModel = errors.New("the cluster's OpenAPI document does not describe the type")
	// ErrRecursive says that a type contains itself, which no CRD can.
	ErrRecursive = errors.New("the type contains itself, which a CRD cannot describe")
	// ErrNotExpressible says that a CRD has no words for a part of the type.
	ErrNotExpressible = errors.New("a CRD cannot express this")
	// ErrTooLarge says that a type or an answer is beyond all reason.
	ErrTooLarge = bounded.ErrTooLarge
	// ErrNotWatchable says that objects of the type cannot be listed and watched.
	ErrNotWatchable = errors.New("the cluster cannot list and watch objects of the type")
)

// Config of a Puller.
type Config struct {
	// Rest connects to the cluster. Required; it is copied. It needs to read discovery
	// and OpenAPI, which every authenticated user may, and should be able to get, list
	// and watch customresourcedefinitions and apiservices.
	Rest *rest.Config
	// Skip leaves out types that are of no interest, such as those that the control
	// plane serves itself. Optional.
	Skip func(schema.GroupVersionKind) bool
	// EveryVersion adds the other versions of a CRD that the cluster serves to the one that
	// it prefers, if their objects can be stored in that one without conversion. The
	// annotation apiresourcev1alpha1.VersionsAnnotation says of the rest why not.
	EveryVersion bool
	// Logger receives what is not worth a Problem. Required.
	Logger *slog.Logger
}

// Problem is why one type that the cluster serves could not be described.
type Problem struct {
	Resource schema.GroupVersionResource
	Err      error
}

// Result is what a cluster serves.
//
// A type is gone for good only if it is neither in CRDs nor in Problems, and its group
// and version are not in Unknown.
type Result struct {
	// CRDs by name, one of each type, each with the version that the cluster prefers first.
	// The name is PLURAL.GROUP, with core for the group of the first types, which CRDs
	// of a Kubernetes cluster cannot have. The caller owns them.
	CRDs []*apiextensionsv1.CustomResourceDefinition
	// Problems by resource: types that are served and could not be described.
	Problems []Problem
	// Unknown are the groups and versions of which the cluster gave no account, such as
	// those of an aggregated API server that is down: nothing of these may be called
	// gone.
	Unknown []schema.GroupVersion
	// NotServed are the names that were asked for and that the cluster certainly does
	// not serve.
	NotServed []string
}

// Puller reads the types of one cluster. It may be used by several goroutines.
type Puller struct {
	config    Config
	transport http.RoundTripper

	mu sync.Mutex
	// schemas are the converted models of the last Pull, with where each is from.
	schemas map[schema.GroupVersionKind]converted
	// answers say why a version cannot be served beside another, by a hash of both.
	answers map[[sha256.Size]byte]string
}

// converted is a schema and the address that it was read from, which holds a hash of
// what is there.
type converted struct {
	source string
	schema *apiextensionsv1.JSONSchemaProps
}

// New prepares a puller. It does not connect.
func New(config Config) (*Puller, error) {
	if config.Rest == nil {
		return nil, errors.New("no connection to pull types from")
	}
	if config.Logger == nil {
		return nil, errors.New("no logger for the puller of types")
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

// Pull describes the types of these names, as PLURAL or PLURAL.GROUP, or all that can be
// listed and watched if there are none. An error means that nothing is known, as when
// the cluster does not answer, or answers only in part what should come whole.
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

// models converts the schemas of built-in types. Those that the cluster's index of
// documents says are unchanged are taken from the last time.
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

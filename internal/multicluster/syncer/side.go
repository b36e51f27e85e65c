package syncer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/multicluster/bounded"
	"rik.dev/rik/internal/multicluster/kubeconfig"
	"rik.dev/rik/internal/pause"
)

// requestTimeout limits one request, so that a server which accepts a connection but does not
// answer does not block a worker forever.
const requestTimeout = 30 * time.Second

// side is a server and the state of the connection to it.
type side struct {
	name      string
	objects   dynamic.Interface
	discovery *discovery.DiscoveryClient
	// config and client are used to create both.
	config *rest.Config
	client *http.Client
	redact func(error) string
	// broken is true if the last request did not reach the server. Until a probe succeeds, no
	// other request is sent, so that the end of an outage does not cause a storm of requests.
	broken atomic.Bool
	// suspect requests a probe soon.
	suspect func()
}

func newSide(name string, config *rest.Config) (*side, error) {
	config = rest.CopyConfig(config)
	// The number of workers limits the requests.
	config.QPS = -1
	config.UserAgent = "rik-syncer"
	config.WarningHandler = rest.NoWarnings{}
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", name, err)
	}
	objects, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("making a client for %s: %w", name, err)
	}
	disco, err := discovery.NewDiscoveryClientForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("making a discovery client for %s: %w", name, err)
	}
	return &side{
		name: name, objects: objects, discovery: disco, config: config, client: client,
		redact: kubeconfig.Redaction(config), suspect: func() {},
	}, nil
}

// resource returns the client for the objects of a type, in one namespace or none.
func (s *side) resource(t Type, namespace string) dynamic.ResourceInterface {
	if t.Namespaced {
		return s.objects.Resource(t.Resource).Namespace(namespace)
	}
	return s.objects.Resource(t.Resource)
}

// ask makes one request and records whether the server was reached.
func ask[T any](ctx context.Context, s *side, request func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, fmt.Errorf("%s has not answered for %s", s.name, requestTimeout))
	defer cancel()
	answer, err := request(ctx)
	s.note(err)
	return answer, s.shown(err)
}

// note evaluates the error of a request. A failed connection stops all other requests. A timeout,
// or an answer that a service is not available, may concern only one type or object. In that case
// a probe decides.
func (s *side) note(err error) {
	switch {
	case err == nil:
	case isLost(err):
		s.broken.Store(true)
		s.suspect()
	case isUnreachable(err):
		s.suspect()
	}
}

// brokenPause is the interval at which a waiting caller checks whether the server is back.
const brokenPause = 250 * time.Millisecond

// reachable waits while the server is known to be unreachable.
func (s *side) reachable(ctx context.Context) {
	for s.broken.Load() && pause.For(ctx, brokenPause) {
	}
}

// shown returns an error whose text may be shown. The text of a server may contain the
// credentials that it was sent, and may have any length.
func (s *side) shown(err error) error {
	if err == nil {
		return nil
	}
	return shownError{error: err, text: s.redact(err)}
}

type shownError struct {
	error
	text string
}

func (e shownError) Error() string { return e.text }

func (e shownError) Unwrap() error { return e.error }

// probe asks whether the server is ready.
func (s *side) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := s.discovery.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	s.broken.Store(err != nil)
	if err != nil {
		return fmt.Errorf("asking %s whether it is ready: %w", s.name, s.shown(err))
	}
	return nil
}

func (s *side) get(ctx context.Context, t Type, namespace, name string) (*unstructured.Unstructured, error) {
	return ask(ctx, s, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return s.resource(t, namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// errNotAsked: the response contains another object, or none.
var errNotAsked = errors.New("it has another name")

// discover reads what a server serves. The requests end with the context.
func discover[T any](ctx context.Context, s *side, request func(discovery.DiscoveryInterface) (T, error)) (T, error) {
	return ask(ctx, s, func(ctx context.Context) (T, error) {
		d, err := bounded.Discovery(ctx, s.config, s.client)
		if err != nil {
			var none T
			return none, err
		}
		return request(d)
	})
}

// metadata returns only the metadata of a cluster-scoped object. The rest of a CRD can be half a
// megabyte.
func (s *side) metadata(ctx context.Context, t Type, name string) (*metav1.PartialObjectMetadata, error) {
	return ask(ctx, s, func(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
		found := &metav1.PartialObjectMetadata{}
		raw, err := s.discovery.RESTClient().Get().
			AbsPath("apis", t.Resource.Group, t.Resource.Version, t.Resource.Resource, name).
			SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1").
			Do(ctx).Raw()
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, found); err != nil || found.Name != name {
			return nil, fmt.Errorf("%s answered with another object than the %s %s: %w", s.name, t.Kind, name, cmp.Or(err, errNotAsked))
		}
		return found, nil
	})
}

func (s *side) list(ctx context.Context, t Type, namespace string, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return ask(ctx, s, func(ctx context.Context) (*unstructured.UnstructuredList, error) {
		return s.resource(t, namespace).List(ctx, options)
	})
}

// merge applies a merge patch to an object or one of its subresources. It writes through the
// version that loses no fields, and returns the object in the version of the type.
func (s *side) merge(ctx context.Context, t Type, object *unstructured.Unstructured, patch []byte, subresources ...string) (*unstructured.Unstructured, error) {
	through := t
	if t.Written.Version != "" {
		through.Resource = t.Written
	}
	merged, err := ask(ctx, s, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return s.resource(through, object.GetNamespace()).Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, subresources...)
	})
	if err != nil || through == t {
		return merged, err
	}
	return s.get(ctx, t, object.GetNamespace(), object.GetName())
}

func (s *side) apply(ctx context.Context, t Type, object *unstructured.Unstructured, options metav1.ApplyOptions) (*unstructured.Unstructured, error) {
	return ask(ctx, s, func(ctx context.Context) (*unstructured.Unstructured, error) {
		return s.resource(t, object.GetNamespace()).Apply(ctx, object.GetName(), object, options)
	})
}

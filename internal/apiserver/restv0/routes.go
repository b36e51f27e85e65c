package restv0

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/registry"
)

const (
	prefix   = "/api/v0"
	prefixV1 = "/api/v1"
	// instancesOf is followed by a slash and the ID of a workload.
	instancesOf = prefix + "/workloads.instances"
)

// Config configures the API. All fields are required.
type Config struct {
	Stores     registry.Stores
	Authorizer authorizer.Authorizer
	Admission  admission.Interface
	// Namespaces returns the names of all namespaces, for users who may list objects only in some
	// of them.
	Namespaces func(context.Context) ([]string, error)
}

// Validate reports everything that is missing.
func (c Config) Validate() error {
	var problems []error
	for what, missing := range map[string]bool{
		"stores": c.Stores.Workloads == nil, "authorizer": c.Authorizer == nil,
		"admission": c.Admission == nil, "namespaces": c.Namespaces == nil,
	} {
		if missing {
			problems = append(problems, fmt.Errorf("programmer error: restv0 without %s", what))
		}
	}
	return errors.Join(problems...)
}

// Routes returns the routes of one server, in the form of apiserver.Config.Routes. A server
// that does not serve rik.dev itself has none.
func Routes(s *apiserver.Server) ([]apiserver.Route, error) {
	if s.Stores().Workloads == nil {
		return nil, nil
	}
	client, err := kubernetes.NewForConfig(s.LoopbackConfig())
	if err != nil {
		return nil, fmt.Errorf("creating a client for the published API: %w", err)
	}
	handler, err := New(Config{
		Stores: s.Stores(), Authorizer: s.Authorizer(), Admission: s.Admission(),
		Namespaces: func(ctx context.Context) ([]string, error) { return namespaces(ctx, client) },
	})
	if err != nil {
		return nil, err
	}
	return mount(handler), nil
}

// mount mounts all of /api/v0. Of /api/v1, which belongs to Kubernetes, it mounts only the
// exact published paths.
func mount(handler http.Handler) []apiserver.Route {
	out := []apiserver.Route{
		{Path: prefix, Handler: handler, Legacy: true},
		{Path: prefix + "/", Handler: handler, Legacy: true},
	}
	for _, e := range instanceEndpoints(prefixV1) {
		out = append(out, apiserver.Route{Path: e.path, Handler: handler, Legacy: true})
	}
	return out
}

func namespaces(ctx context.Context, client kubernetes.Interface) ([]string, error) {
	// The server's cache is sufficient, because a namespace that is milliseconds old is empty.
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// endpoint is one method on one path.
type endpoint struct {
	method, path string
	serve        func(*call) (answer, error)
	// parameters are the accepted query parameters.
	parameters []string
}

var (
	listParameters   = []string{paramLimit, paramNamespace}
	objectParameters = []string{paramNamespace}
)

// endpoints returns all endpoints, except the path that ends in an ID.
func endpoints() []endpoint {
	get, post := http.MethodGet, http.MethodPost
	out := []endpoint{
		{get, prefix + "/openapi.json", serveOpenAPI, nil},
		{get, prefix + "/workloads.list", (*call).listWorkloads, listParameters},
		{post, prefix + "/workloads.create", (*call).createWorkload, objectParameters},
		{post, prefix + "/workloads.delete", (*call).deleteWorkload, objectParameters},
		{get, prefix + "/tenants.list", (*call).listTenants, []string{paramLimit}},
		{post, prefix + "/tenants.create", (*call).createTenant, nil},
		{post, prefix + "/tenants.delete", (*call).deleteTenant, nil},
	}
	return append(append(out, instanceEndpoints(prefix)...), instanceEndpoints(prefixV1)...)
}

// instanceEndpoints returns endpoints that are served twice. The published document has them
// under /api/v1, with instance.delete, and the published code has them under /api/v0.
func instanceEndpoints(prefix string) []endpoint {
	get, post := http.MethodGet, http.MethodPost
	return []endpoint{
		{get, prefix + "/instances.list", (*call).listInstances, listParameters},
		{post, prefix + "/instances.create", (*call).createInstances, objectParameters},
		{post, prefix + "/instances.delete", (*call).deleteInstance, objectParameters},
		{post, prefix + "/instance.delete", (*call).deleteInstance, objectParameters},
	}
}

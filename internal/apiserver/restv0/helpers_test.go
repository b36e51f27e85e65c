package restv0_test

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/testkit/apitest"
)

func withRoutes(c *apiserver.Config) {
	c.Routes, c.InsecureLegacyAddress = restv0.Routes, "127.0.0.1:0"
}

func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m, withRoutes)) }

// alone returns the shared server for a test that is not parallel. Parallel tests start after
// those have ended, so the test has the server to itself. The server is empty, and is emptied
// again afterward.
func alone(t *testing.T) *apitest.Server {
	t.Helper()
	s := apitest.Shared(t)
	wipe(t, s)
	t.Cleanup(func() { wipe(t, s) })
	return s
}

// wipe deletes all objects of rik.dev that clients of this API create, even if they have
// finalizers.
func wipe(t *testing.T, s *apitest.Server) {
	t.Helper()
	objects := dynamic.NewForConfigOrDie(s.Config)
	for _, resource := range []string{"instances", "workloads", "tenants"} {
		all := objects.Resource(rikv1alpha1.SchemeGroupVersion.WithResource(resource))
		// The context of a test has ended when its cleanup runs.
		err := wait.PollUntilContextTimeout(context.Background(), 25*time.Millisecond, apitest.Timeout, true, func(ctx context.Context) (bool, error) {
			return wipeOnce(ctx, all)
		})
		if err != nil {
			t.Fatalf("deleting all %s: %v", resource, err)
		}
	}
}

// wipeOnce reports whether there was nothing to delete.
func wipeOnce(ctx context.Context, all dynamic.NamespaceableResourceInterface) (bool, error) {
	list, err := all.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		name, one := list.Items[i].GetName(), all.Namespace(list.Items[i].GetNamespace())
		err := one.Delete(ctx, name, *metav1.NewDeleteOptions(0))
		if err == nil {
			_, err = one.Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
	}
	return len(list.Items) == 0, nil
}

// client sends requests as one user.
type client struct {
	http *http.Client
	url  string
}

func clientFor(t *testing.T, config *rest.Config) client {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client{c, config.Host}
}

func admin(t *testing.T, s *apitest.Server) client {
	t.Helper()
	return clientFor(t, s.Config)
}

// user is a user with a certificate and only explicitly granted permissions.
func user(t *testing.T, s *apitest.Server, name string) client {
	t.Helper()
	certPEM, keyPEM, err := s.API.Authority().IssueClient(pkix.Name{CommonName: name}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData = certPEM, keyPEM
	return clientFor(t, config)
}

func grant(t *testing.T, s *apitest.Server, namespace, role, user string) {
	t.Helper()
	_, err := s.Client.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

type response struct {
	status int
	header http.Header
	body   string
}

func (c client) send(t *testing.T, method, path string, header http.Header, body string) response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, c.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		request.Header = header
	}
	got, err := c.http.Do(request)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer got.Body.Close()
	answer, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{got.StatusCode, got.Header, string(answer)}
}

func (c client) get(t *testing.T, path string) response {
	t.Helper()
	return c.send(t, http.MethodGet, path, nil, "")
}

func (c client) post(t *testing.T, path, body string) response {
	t.Helper()
	return c.send(t, http.MethodPost, path, http.Header{"Content-Type": {"application/json"}}, body)
}

// want fails unless the response has the status, and decodes it.
func want[T any](t *testing.T, got response, status int) (out T) {
	t.Helper()
	if got.status != status {
		t.Fatalf("answer = %d %s, want %d", got.status, got.body, status)
	}
	if err := json.Unmarshal([]byte(got.body), &out); err != nil {
		t.Fatalf("decoding %q: %v", got.body, err)
	}
	return out
}

func wantNothing(t *testing.T, got response) {
	t.Helper()
	if got.status != http.StatusNoContent || got.body != "" {
		t.Fatalf("answer = %d %s, want 204 and no body", got.status, got.body)
	}
}

type failure struct {
	Error, Reason string
	Code          int
	Details       []struct{ Field, Message string }
}

// wantFailure fails unless the response is a complete error that contains all the words.
func wantFailure(t *testing.T, got response, status int, words ...string) failure {
	t.Helper()
	f := want[failure](t, got, status)
	if f.Code != status || f.Reason == "" || f.Error == "" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("error = %s, want error, reason and code %d in JSON", got.body, status)
	}
	for _, word := range words {
		if !strings.Contains(got.body, word) {
			t.Errorf("error = %s, want one with %q", got.body, word)
		}
	}
	return f
}

const pod = `{"apiVersion":"v0","kind":"Pod","name":%q,"replicas":3,"spec":{"containers":[{"name":"main","image":"docker://nginx:1"}]}}`

type identity struct{ ID string }

type row struct {
	ID, Name string
	Value    struct {
		WorkloadID              string `json:"workload_id"`
		Namespace, Status, Kind string
	}
}

func (c client) workload(t *testing.T, namespace, name string) string {
	t.Helper()
	return want[identity](t, c.post(t, "/api/v0/workloads.create?namespace="+namespace, fmt.Sprintf(pod, name)), 200).ID
}

type tenantRow struct{ ID, Name, Value, Verb, Resource string }

func names(rows []row) string {
	var out []string
	for _, r := range rows {
		out = append(out, r.Name)
	}
	return strings.Join(out, " ")
}

func granted(t *testing.T, c client, namespace string) func(context.Context) error {
	return func(context.Context) error {
		for _, resource := range []string{"workloads", "instances"} {
			if got := c.get(t, "/api/v0/"+resource+".list?namespace="+namespace); got.status != 200 {
				return errors.New(got.body)
			}
		}
		return nil
	}
}

// quotaHolds requests more than a quota allows until that is refused. It deletes the instances
// of requests that came too early.
func quotaHolds(t *testing.T, c client, workload string) func(context.Context) error {
	return func(context.Context) error {
		got := c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"replicas":5}`, workload))
		if got.status == 403 && strings.Contains(got.body, "exceeded quota") {
			return nil
		}
		for _, r := range want[[]row](t, c.get(t, "/api/v0/instances.list"), 200) {
			if r.Value.WorkloadID == workload {
				wantNothing(t, c.post(t, "/api/v0/instances.delete", fmt.Sprintf(`{"id":%q}`, r.ID)))
			}
		}
		return fmt.Errorf("answer = %d %s", got.status, got.body)
	}
}

func compact(t *testing.T, text []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

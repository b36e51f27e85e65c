package restv0_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/controltest"
	"rik.dev/rik/internal/testkit/poll"
)

// TestDeleteCascadesFault01: a published client without certificates deletes a workload through
// the plain port, several times. Its instances end, and the controller and the server keep
// running.
func TestDeleteCascadesFault01(t *testing.T) {
	s := alone(t)
	controltest.Start(t, s)
	old := client{&http.Client{}, "http://" + s.API.LegacyAddress().String()}
	t.Cleanup(old.http.CloseIdleConnections)
	for range 5 {
		id := old.workload(t, "default", "web")
		kept := old.workload(t, "default", "kept")
		for _, workload := range []string{id, kept} {
			made := want[[]string](t, old.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"replicas":3}`, workload)), 201)
			if len(made) != 3 {
				t.Fatalf("made %v, want 3 instances", made)
			}
		}
		wantNothing(t, old.post(t, "/api/v0/workloads.delete", fmt.Sprintf(`{"id":%q}`, id)))
		poll.Until(t, apitest.Timeout, "the workload's instances are gone", func(context.Context) error {
			return leftOf(t, old, id, 0)
		})
		if err := leftOf(t, old, kept, 3); err != nil {
			t.Error(err)
		}
		wantFailure(t, old.get(t, "/api/v0/workloads.instances/"+id), 404, id)
		wantNothing(t, old.post(t, "/api/v0/workloads.delete", fmt.Sprintf(`{"id":%q}`, kept)))
		poll.Until(t, apitest.Timeout, "nothing is left", func(context.Context) error { return leftOf(t, old, kept, 0) })
	}
}

func leftOf(t *testing.T, c client, workload string, n int) error {
	t.Helper()
	rows := slices.DeleteFunc(want[[]row](t, c.get(t, "/api/v0/instances.list"), 200), func(r row) bool { return r.Value.WorkloadID != workload })
	if len(rows) != n {
		return fmt.Errorf("instances of %s are %s, want %d", workload, names(rows), n)
	}
	return nil
}

// TestReplicasFault08: each request creates exactly the requested number of instances, whatever
// the workload's own replicas are. Numbers outside the allowed range are refused.
func TestReplicasFault08(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c, namespace := admin(t, s), s.Namespace(t)
	id := c.workload(t, namespace, "web")
	total := 0
	for _, replicas := range []int{0, 1, 2, 3} {
		made := want[[]string](t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"replicas":%d}`, id, replicas)), 201)
		total += len(made)
		if len(made) != replicas {
			t.Errorf("replicas %d made %v", replicas, made)
		}
		for _, name := range made {
			if !strings.HasPrefix(name, "web-") {
				t.Errorf("instance is called %q, want web-<suffix>", name)
			}
		}
	}
	for _, replicas := range []string{"-1", "65536", fmt.Sprint(restv0.MaxReplicas + 1), "18446744073709551616", "1.5", `"3"`} {
		wantFailure(t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"replicas":%s}`, id, replicas)), 400, "replicas")
	}
	for range total {
		rows := want[[]row](t, c.get(t, "/api/v0/instances.list?limit=1000&namespace="+namespace), 200)
		rows = slices.DeleteFunc(rows, func(r row) bool { return r.Value.Status == "Destroying" })
		if len(rows) != total {
			t.Fatalf("%d instances live, want %d", len(rows), total)
		}
		wantNothing(t, c.post(t, "/api/v0/instances.delete", fmt.Sprintf(`{"id":%q}`, rows[0].ID)))
		total--
	}
}

// TestNamesFault09: names are compared as a whole, and are never part of a query.
func TestNamesFault09(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c, namespace := admin(t, s), s.Namespace(t)
	create := "/api/v0/workloads.create?namespace=" + namespace
	long := c.workload(t, namespace, "foobar")
	short := c.workload(t, namespace, "foo")
	wantFailure(t, c.post(t, create, fmt.Sprintf(pod, "foo")), 409, "Name already used")
	for _, name := range []string{
		`x'; DROP TABLE cluster; --`, `" OR ""="`, "foo%", "fo_", "../foo", "foo/bar", "Foo", "foo\x00bar", "", strings.Repeat("a", 300),
	} {
		f := wantFailure(t, c.post(t, create, strings.ReplaceAll(fmt.Sprintf(pod, "@"), `"@"`, quoted(name))), 400)
		if len(f.Details) == 0 || f.Details[0].Field != "name" {
			t.Errorf("creating %q = %+v, want the field name", name, f)
		}
		wantFailure(t, c.post(t, "/api/v0/instances.delete?namespace="+namespace, `{"id":`+quoted(name+"'")+`}`), 404)
		wantFailure(t, c.post(t, "/api/v0/workloads.delete", `{"id":`+quoted(name+"%")+`}`), 404)
	}
	want[[]string](t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":"foobar-1"}`, long)), 201)
	want[[]string](t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":"foo-1"}`, short)), 201)
	wantFailure(t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":"foo-1"}`, long)), 409, "Name already used")
	wantNothing(t, c.post(t, "/api/v0/workloads.delete", fmt.Sprintf(`{"id":%q}`, short)))
	if got := names(want[[]row](t, c.get(t, "/api/v0/workloads.list?namespace="+namespace), 200)); got != "foobar" {
		t.Errorf("workloads after deleting foo: %s, want foobar", got)
	}
	got := want[struct{ Instances []row }](t, c.get(t, "/api/v0/workloads.instances/"+long), 200)
	if names(got.Instances) != "foobar-1" {
		t.Errorf("instances of foobar: %s, want foobar-1", names(got.Instances))
	}
}

// TestTenantsFault10: a new tenant is listed and has a namespace, in which its user has exactly
// the granted permissions. All of it is removed with the tenant. Errors and missing credentials
// are tested by the corpus.
func TestTenantsFault10(t *testing.T) {
	s := alone(t)
	controltest.Start(t, s)
	c, dora := admin(t, s), user(t, s, "dora")
	made := want[struct{ ID, Name string }](t, c.post(t, "/api/v0/tenants.create", `{"name":"dora","verb":"create","resource":"workload"}`), 200)
	if rows := want[[]tenantRow](t, c.get(t, "/api/v0/tenants.list"), 200); len(rows) != 1 || rows[0] != (tenantRow{made.ID, "dora", "", "create", "workloads"}) {
		t.Errorf("tenants are %+v, want dora with id %s", rows, made.ID)
	}
	poll.Until(t, apitest.Timeout, "dora may create workloads in her namespace", func(context.Context) error {
		if got := dora.post(t, "/api/v0/workloads.create?namespace=dora", fmt.Sprintf(pod, "web")); got.status != 200 {
			return errors.New(got.body)
		}
		return nil
	})
	wantFailure(t, dora.get(t, "/api/v0/workloads.list"), 403, "dora", "list")
	wantFailure(t, dora.post(t, "/api/v0/workloads.create", fmt.Sprintf(pod, "web")), 403, "dora", "create")
	wantFailure(t, dora.get(t, "/api/v0/tenants.list"), 403)
	wantNothing(t, c.post(t, "/api/v0/tenants.delete", fmt.Sprintf(`{"id":%q}`, made.ID)))
	// The controller removes a tenant's finalizer once its namespace is gone.
	poll.Until(t, apitest.Timeout, "the tenant is gone", func(context.Context) error {
		if rows := want[[]tenantRow](t, c.get(t, "/api/v0/tenants.list"), 200); len(rows) > 0 {
			return fmt.Errorf("tenants are %+v", rows)
		}
		return nil
	})
	namespace, err := s.Client.CoreV1().Namespaces().Get(t.Context(), "dora", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) && (err != nil || namespace.DeletionTimestamp == nil) {
		t.Errorf("the tenant's namespace = %+v, %v; want one that is gone or going", namespace, err)
	}
	wantFailure(t, c.post(t, "/api/v0/tenants.delete", fmt.Sprintf(`{"id":%q}`, made.ID)), 404, made.ID)
}

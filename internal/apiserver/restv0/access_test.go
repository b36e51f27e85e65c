package restv0_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

func quoted(s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(out)
}

// TestWhatAUserMay: every route authorizes the real verb and namespace.
func TestWhatAUserMay(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	mine, seen, other := s.Namespace(t), s.Namespace(t), s.Namespace(t)
	eve := "eve-" + mine
	grant(t, s, mine, "edit", eve)
	grant(t, s, seen, "view", eve)
	root, c := admin(t, s), user(t, s, eve)
	rootIDs := map[string]string{}
	for _, namespace := range []string{seen, other} {
		rootIDs[namespace] = root.workload(t, namespace, "web")
		want[[]string](t, root.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":"one"}`, rootIDs[namespace])), 201)
	}
	untilGranted(t, c, mine, seen)

	id := c.workload(t, mine, "hers")
	want[[]string](t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":"hers"}`, id)), 201)
	rows := want[[]row](t, c.get(t, "/api/v0/instances.list"), 200)
	got := map[string]string{}
	for _, r := range rows {
		got[r.Value.Namespace] += r.Name
	}
	if len(got) != 2 || got[mine] != "hers" || got[seen] != "one" {
		t.Errorf("instances by namespace = %v, want those of %s and %s", got, mine, seen)
	}
	if rows := want[[]row](t, c.get(t, "/api/v0/instances.list?limit=1"), 200); len(rows) != 1 {
		t.Errorf("limit=1 lists %s", names(rows))
	}
	wantFailure(t, c.get(t, "/api/v0/instances.list?namespace="+other), 403, other)
	want[struct{}](t, c.get(t, "/api/v0/workloads.instances/"+rootIDs[seen]), 200)
	for _, namespace := range []string{seen, other} {
		wantFailure(t, c.post(t, "/api/v0/workloads.create?namespace="+namespace, fmt.Sprintf(pod, "x")), 403)
		wantFailure(t, c.post(t, "/api/v0/workloads.delete", fmt.Sprintf(`{"id":%q}`, rootIDs[namespace])), 403)
		wantFailure(t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q}`, rootIDs[namespace])), 403)
		wantFailure(t, c.post(t, "/api/v0/instances.delete?namespace="+namespace, `{"id":"one"}`), 403)
		wantFailure(t, c.post(t, "/api/v0/instances.delete?namespace="+namespace, `{"id":"none"}`), 403)
	}
	refused := wantFailure(t, c.get(t, "/api/v0/workloads.instances/"+rootIDs[other]), 403)
	if strings.Contains(refused.Error, other) {
		t.Errorf("refusal %q names the namespace, which the user did not", refused.Error)
	}
	wantFailure(t, c.post(t, "/api/v0/tenants.create", `{"name":"x"}`), 403)
	wantNothing(t, c.post(t, "/api/v0/instances.delete?namespace="+mine, `{"id":"hers"}`))
	wantNothing(t, c.post(t, "/api/v0/workloads.delete", fmt.Sprintf(`{"id":%q}`, id)))
}

// TestForeignObjectsAreNotNamed: a user who has the ID of another user's object learns nothing
// about the object.
func TestForeignObjectsAreNotNamed(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	other := s.Namespace(t)
	root, c := admin(t, s), user(t, s, "stranger")
	const hidden = "confidential"
	id := root.workload(t, other, hidden)
	want[[]string](t, root.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q,"name":%q}`, id, hidden)), 201)
	rows := want[[]row](t, root.get(t, "/api/v0/instances.list?namespace="+other), 200)
	for path, body := range map[string]string{
		"/api/v0/workloads.delete": fmt.Sprintf(`{"id":%q}`, id),
		"/api/v0/instances.delete": fmt.Sprintf(`{"id":%q}`, rows[0].ID),
		"/api/v0/instances.create": fmt.Sprintf(`{"workload_id":%q}`, id),
	} {
		if refused := wantFailure(t, c.post(t, path, body), 403); strings.Contains(refused.Error, hidden) || strings.Contains(refused.Error, other) {
			t.Errorf("%s answers %q, which names what the user did not", path, refused.Error)
		}
	}
	if refused := wantFailure(t, c.get(t, "/api/v0/workloads.instances/"+id), 403); strings.Contains(refused.Error, hidden) {
		t.Errorf("the list of instances answers %q", refused.Error)
	}
}

func untilGranted(t *testing.T, c client, namespaces ...string) {
	t.Helper()
	for _, namespace := range namespaces {
		poll.Until(t, apitest.Timeout, "the grant is known", granted(t, c, namespace))
	}
}

// TestRequestWithoutCredentials: a request without credentials gets an error in JSON and nothing else.
func TestRequestWithoutCredentials(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c := clientFor(t, rest.AnonymousClientConfig(s.Config))
	for _, served := range restv0.Served() {
		method, path, _ := strings.Cut(served, " ")
		if got := c.send(t, method, path, nil, "{}"); got.status != http.StatusUnauthorized || !strings.Contains(got.body, `"code":401`) {
			t.Errorf("%s = %d %s, want 401", served, got.status, got.body)
		}
	}
}

// TestAdmissionRuns: a quota, which an admission plugin enforces, applies. Instances that a
// request created before the quota was exceeded are deleted again.
func TestAdmissionRuns(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c, namespace := admin(t, s), s.Namespace(t)
	id := c.workload(t, namespace, "web")
	// The server refuses quotas of users, because no controller counts their usage.
	own, err := kubernetes.NewForConfig(s.Own)
	if err != nil {
		t.Fatal(err)
	}
	quota, err := own.CoreV1().ResourceQuotas(namespace).Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/instances.rik.dev": resource.MustParse("2")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Set the status that a quota controller would set.
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"count/instances.rik.dev": resource.MustParse("0")}}
	if _, err := s.Client.CoreV1().ResourceQuotas(namespace).UpdateStatus(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the quota is enforced", quotaHolds(t, c, id))
	for _, r := range want[[]row](t, c.get(t, "/api/v0/instances.list?namespace="+namespace), 200) {
		if r.Value.Status != "Destroying" {
			t.Errorf("instance %s of a request that failed is %s, want Destroying", r.Name, r.Value.Status)
		}
	}
	gone := "nowhere-" + namespace
	wantFailure(t, c.post(t, "/api/v0/workloads.create?namespace="+gone, fmt.Sprintf(pod, "web")), 404, gone)
}

func TestBodies(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c, namespace := admin(t, s), s.Namespace(t)
	path := "/api/v0/workloads.create?namespace=" + namespace
	big := fmt.Sprintf(pod, strings.Repeat("a", restv0.MaxBody))
	wantFailure(t, c.post(t, path, big), 413)
	tests := []struct {
		name, contentType, origin string
		status                    int
	}{
		{"none", "", "", 200},
		{"json", "application/json; charset=utf-8", "", 200},
		{"curl", "application/x-www-form-urlencoded", "", 200},
		{"text", "text/plain", "", 200},
		{"yaml", "application/yaml", "", 415},
		{"multipart", "multipart/form-data; boundary=x", "", 415},
		{"nonsense", "/;;", "", 415},
		{"page-text", "text/plain", "https://evil.example", 415},
		{"page-none", "", "https://evil.example", 415},
		{"page-json", "application/json", "https://evil.example", 200},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			if tc.contentType != "" {
				header.Set("Content-Type", tc.contentType)
			}
			if tc.origin != "" {
				header.Set("Origin", tc.origin)
			}
			if got := c.send(t, "POST", path, header, fmt.Sprintf(pod, tc.name)); got.status != tc.status {
				t.Errorf("content type %q = %d %s, want %d", tc.contentType, got.status, got.body, tc.status)
			}
		})
	}
}

// TestDeletedIsGoneAtOnce deletes workloads twice in a row, before the server's cache shows the
// first deletion. No controller runs, so that the workloads stay.
func TestDeletedIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	c, namespace := admin(t, s), s.Namespace(t)
	for i := range 50 {
		id := c.workload(t, namespace, fmt.Sprintf("web-%d", i))
		body := fmt.Sprintf(`{"id":%q}`, id)
		wantNothing(t, c.post(t, "/api/v0/workloads.delete", body))
		wantFailure(t, c.post(t, "/api/v0/workloads.delete", body), 404, id)
		wantFailure(t, c.post(t, "/api/v0/instances.create", fmt.Sprintf(`{"workload_id":%q}`, id)), 404, id)
	}
}

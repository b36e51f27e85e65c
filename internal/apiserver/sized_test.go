package apiserver_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/testkit/apitest"
)

// TestLargeObjectsAreRefusedBySize: an object that is too large for the datastore, but not for
// the server, is refused with status 413 and a message. That is so for both causes of the
// refusal.
func TestLargeObjectsAreRefusedBySize(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	maps := s.Client.CoreV1().ConfigMaps(s.Namespace(t))
	filler := make([]byte, 1<<20)
	_, _ = rand.Read(filler)
	text := hex.EncodeToString(filler)
	check := func(what string, err error) {
		t.Helper()
		if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "too large to be stored") {
			t.Errorf("%s = %v, want 413 in words", what, err)
		}
	}
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "small"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The data of ConfigMaps and annotations have limits. The finalizers, and the managed fields
	// for them, have none.
	for _, size := range []int{1_700_000, 2_000_000} {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", size), Finalizers: finalizers(text[:size])}}
		_, err := maps.Create(t.Context(), object, metav1.CreateOptions{})
		check(fmt.Sprint("creating with ", size, " bytes"), err)
		patch := []byte(`{"metadata":{"finalizers":["` + strings.Join(object.Finalizers, `","`) + `"]}}`)
		_, err = maps.Patch(t.Context(), "small", types.MergePatchType, patch, metav1.PatchOptions{})
		check(fmt.Sprint("patching with ", size, " bytes"), err)
	}
}

// finalizers returns as few names as possible that contain a text, because each is a field with
// a manager.
func finalizers(text string) []string {
	domain := strings.Repeat(strings.Repeat("d", 61)+".", 4) + "dev"
	var out []string
	for each := len(domain) + 1 + 60; len(text) > each; text = text[each:] {
		out = append(out, domain+"/"+text[:60])
	}
	return out
}

// TestManyContainersAreRefusedEarly: too many containers are refused before the document is
// decoded, defaulted and compared field by field, for every kind of write.
func TestManyContainersAreRefusedEarly(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"name":"a","image":"docker://b/c:1"},`, 40_000), ",") + "]"
	workload := `{"apiVersion":"rik.dev/v1alpha1","kind":"Workload","metadata":{"name":"w"},"spec":{"containers":` + many + `}}`
	deployment := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":` + many + `}}}}`
	for name, tc := range map[string]struct{ method, path, mediaType, body, want string }{
		"create":     {http.MethodPost, "/apis/rik.dev/v1alpha1/namespaces/" + namespace + "/workloads", "application/json", workload, "spec.containers: Too many: 40000"},
		"apply":      {http.MethodPatch, "/apis/rik.dev/v1alpha1/namespaces/" + namespace + "/workloads/w?fieldManager=x", "application/apply-patch+yaml", workload, "spec.containers: Too many: 40000"},
		"deployment": {http.MethodPost, "/apis/apps/v1/namespaces/" + namespace + "/deployments", "application/json", deployment, "spec.template.spec.containers: Too many: 40000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if status, answer := send(t, s, tc.method, tc.path, tc.mediaType, tc.body); status != http.StatusUnprocessableEntity || !strings.Contains(answer, tc.want) {
				t.Errorf("answer = %d %.300s, want 422 and %q", status, answer, tc.want)
			}
		})
	}
}

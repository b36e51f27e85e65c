package apitest_test

import (
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/testkit/apitest"
)

func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }

func TestSharedIsOneServer(t *testing.T) {
	t.Parallel()
	first, second := apitest.Shared(t), apitest.Shared(t)
	if first != second {
		t.Errorf("Shared() = %s then %s, want one server", first.URL, second.URL)
	}
	name := first.Namespace(t)
	if _, err := second.Client.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
		t.Errorf("reading the namespace back: %v", err)
	}
}

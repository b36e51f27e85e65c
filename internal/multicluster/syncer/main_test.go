package syncer_test

import (
	"fmt"
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kube"
)

// The physical cluster is a real Kubernetes API server. It runs without controllers, because
// these would interfere with what is compared.
func TestMain(m *testing.M) {
	code := kube.RunMain(m, kube.Options{})
	if err := idle.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the kcps of the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

package syncer_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kube"
)

// The physical cluster is a real Kubernetes, without controllers that would play a part
// of their own in what is compared.
func TestMain(m *testing.M) { os.Exit(kube.RunMain(m, kube.Options{})) }

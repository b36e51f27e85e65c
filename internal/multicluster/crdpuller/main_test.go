package crdpuller_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kube"
)

func TestMain(m *testing.M) { os.Exit(kube.RunMain(m, kube.Options{})) }

package crdpuller_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.After(kube.RunMain(m, kube.Options{}))) }

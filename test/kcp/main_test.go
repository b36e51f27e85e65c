// Package kcp asks a kcp, as any client would, for what it serves of itself.
package kcp

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kcptest"
)

func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }

// Package kcp tests what a kcp serves without other components, with requests of a client.
package kcp

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/kcptest"
)

func TestMain(m *testing.M) { os.Exit(kcptest.RunMain(m)) }

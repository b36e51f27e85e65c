package firecracker

import (
	"os"
	"testing"

	"rik.dev/rik/internal/riklet/vmm/firecracker/apitest"
)

func TestMain(m *testing.M) {
	apitest.Main()
	os.Exit(m.Run())
}

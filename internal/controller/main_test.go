package controller_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/testkit/apiprocess"
)

func TestMain(m *testing.M) {
	if controller.IsDrillChild() {
		os.Exit(controller.DrillChild())
	}
	os.Exit(apiprocess.RunMain(m))
}

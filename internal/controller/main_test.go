package controller_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/apiprocess"
)

func TestMain(m *testing.M) { os.Exit(apiprocess.RunMain(m)) }

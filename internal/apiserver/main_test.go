package apiserver_test

import (
	"os"
	"testing"

	"rik.dev/rik/internal/testkit/apitest"
)

func TestMain(m *testing.M) { os.Exit(apitest.RunMain(m)) }

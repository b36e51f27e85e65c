package bench

import (
	"testing"

	"rik.dev/rik/internal/testkit/rikcluster"
)

func TestMain(m *testing.M) { rikcluster.Main(m) }

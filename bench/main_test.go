package bench

import (
	"testing"

	"rik.dev/rik/internal/apiserver/datastore/datastoretest"
	"rik.dev/rik/internal/testkit/rikcluster"
)

func TestMain(m *testing.M) {
	if isDatastoreProcess() {
		datastoretest.Main(m)
	}
	rikcluster.Main(m)
}

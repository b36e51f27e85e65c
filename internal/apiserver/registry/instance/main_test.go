package instance_test

import (
	"testing"

	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

var etcd *registrytest.Server

func TestMain(m *testing.M) { registrytest.Main(m, &etcd) }

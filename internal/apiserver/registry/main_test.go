package registry_test

import (
	"testing"

	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

// etcd is for tests of only the stores. Tests of requests are in package apiserver.
var etcd *registrytest.Server

func TestMain(m *testing.M) { registrytest.Main(m, &etcd) }

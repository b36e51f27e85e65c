// Package registrytest provides tests with the storage of rik.dev on a real etcd, without a
// server.
package registrytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/install"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/registry"
)

var installed = sync.OnceFunc(func() { install.Install(legacyscheme.Scheme) })

// Server is one embedded etcd.
type Server struct {
	etcd *etcd.Server
	dir  string
}

// Main is the TestMain of a package whose tests share a datastore: it starts one, runs the tests, and
// stops it.
func Main(m *testing.M, server **Server) {
	var err error
	if *server, err = Start(); err != nil {
		fmt.Fprintln(os.Stderr, "starting etcd:", err)
		os.Exit(1)
	}
	code := m.Run()
	if err := (*server).Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping etcd:", err)
		code = 1
	}
	os.Exit(code)
}

// Start runs an etcd in its own directory, for a whole test package. Call it in TestMain.
func Start() (*Server, error) {
	installed()
	// The path of a socket must be shorter than 108 bytes, and that of t.TempDir may be longer.
	dir, err := os.MkdirTemp("/tmp", "rik")
	if err != nil {
		return nil, err
	}
	server, err := etcd.Start(context.Background(), etcd.Config{Dir: dir, SocketDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &Server{etcd: server, dir: dir}, nil
}

// Stop ends the etcd and removes its files.
func (s *Server) Stop() error {
	return errors.Join(s.etcd.Close(), os.RemoveAll(s.dir))
}

// Stores creates the storage of rik.dev under a prefix for one test. A nil authorizer allows
// nothing.
func (s *Server) Stores(t testing.TB, c registry.Config) registry.Stores {
	t.Helper()
	stores, err := registry.NewStores(getter{s, "/" + filepath.Base(t.TempDir()) + "/" + t.Name()}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stores.Destroy)
	// Lists are refused until the watch caches are filled. A server is not ready before that.
	deadline := time.Now().Add(time.Minute)
	for err := stores.Ready(); err != nil; err = stores.Ready() {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for the storage: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	return stores
}

type getter struct {
	server *Server
	prefix string
}

// GetRESTOptions returns options that store protobuf behind a watch cache, like the server.
func (g getter) GetRESTOptions(r schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	info, _ := runtime.SerializerInfoForMediaType(legacyscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	codec := legacyscheme.Codecs.CodecForVersions(info.Serializer, legacyscheme.Codecs.UniversalDeserializer(), rikv1alpha1.SchemeGroupVersion, rik.SchemeGroupVersion)
	config := storagebackend.NewDefaultConfig(g.prefix, codec)
	config.EncodeVersioner = rikv1alpha1.SchemeGroupVersion
	config.Transport.ServerList = []string{g.server.etcd.Endpoint()}
	config.CountMetricPollPeriod = 0
	return generic.RESTOptions{
		StorageConfig: config.ForResource(r), Decorator: genericregistry.StorageWithCacher(),
		EnableGarbageCollection: true, DeleteCollectionWorkers: 1, ResourcePrefix: r.Group + "/" + r.Resource,
	}, nil
}

// As returns the context of a user's request in a namespace.
func As(ctx context.Context, namespace, name string, groups ...string) context.Context {
	ctx = genericapirequest.WithNamespace(ctx, namespace)
	return genericapirequest.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
}

// Allow returns an authorizer that allows one user one verb.
func Allow(name, verb string) authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetUser().GetName() == name && a.GetVerb() == verb {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}

// Package openapidoc serves the OpenAPI documents of a server's built-in types. Each is built
// at its first request. Kubernetes' own code builds all of them before a server is ready, and
// their digests soon after. That takes a third of the time of a start, and most servers never
// receive a request for most of them.
//
// The paths, documents and headers are those of Kubernetes, except for the hash of a document
// in version 3's index. There it is the digest of the document, and here it is a tag of the
// build. For a client, both are opaque strings that differ when the document differs.
package openapidoc

import (
	"encoding/json"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/emicklei/go-restful/v3"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/handler3"
)

const (
	version2 = "/openapi/v2"
	version3 = "/openapi/v3"
	// hash is the query parameter that allows a client to cache a document permanently.
	hash = "hash"
	// kept is how long such a document may be cached. Kubernetes also uses a year.
	kept = 365 * 24 * time.Hour
)

// Config configures the documents.
type Config struct {
	V2 *common.Config
	V3 *common.OpenAPIV3Config
	// Tag must change whenever a document of version 3 may change. Clients cache documents by it.
	Tag string
}

type documents struct {
	Config
	container *restful.Container
	v2, v3    func() http.Handler
}

// Install serves the documents of the container's web services on m. Services may be added to
// the container until the first request for a document.
func Install(container *restful.Container, m *mux.PathRecorderMux, config Config) {
	d := &documents{Config: config, container: container}
	d.v2 = sync.OnceValue(func() http.Handler {
		made := mux.NewPathRecorderMux(version2)
		routes.OpenAPI{Config: d.V2}.InstallV2(container, made)
		return made
	})
	d.v3 = sync.OnceValue(func() http.Handler {
		made := mux.NewPathRecorderMux(version3)
		routes.OpenAPI{V3Config: d.V3}.InstallV3(container, made)
		return made
	})
	m.HandleFunc(version2, func(w http.ResponseWriter, r *http.Request) { d.v2().ServeHTTP(w, r) })
	m.HandleFunc(version3, d.index)
	m.HandlePrefix(version3+"/", http.HandlerFunc(d.document))
}

// index lists the documents of version 3, one for each web service.
func (d *documents) index(w http.ResponseWriter, _ *http.Request) {
	index := handler3.OpenAPIV3Discovery{Paths: map[string]handler3.OpenAPIV3DiscoveryGroupVersion{}}
	for _, service := range d.container.RegisteredWebServices() {
		name := strings.TrimPrefix(service.RootPath(), "/")
		where := url.URL{Path: path.Join(version3, name), RawQuery: url.Values{hash: {d.Tag}}.Encode()}
		index.Paths[name] = handler3.OpenAPIV3DiscoveryGroupVersion{ServerRelativeURL: where.String()}
	}
	raw, err := json.Marshal(index)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw) // the client may have disconnected
}

// document serves one document of version 3. A request with our tag gets a document that may be
// cached. Kubernetes' handler serves a request with another hash.
func (d *documents) document(w http.ResponseWriter, r *http.Request) {
	if query := r.URL.Query(); query.Get(hash) == d.Tag {
		query.Del(hash)
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
		w = &forGood{ResponseWriter: w}
	}
	d.v3().ServeHTTP(w, r)
}

// forGood adds cache headers to a response that contains the document, and not to an error. An
// error, such as for an unsupported format, must not be cached.
type forGood struct{ http.ResponseWriter }

func (w *forGood) WriteHeader(status int) {
	if status < http.StatusBadRequest {
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().Add(kept).UTC().Format(http.TimeFormat))
	}
	w.ResponseWriter.WriteHeader(status)
}

package ociimage

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry serves the OCI layout Dir read-only through the distribution API. It accepts any
// repository name, and the tags are those of the layout. With Username set it requires basic
// authentication.
type Registry struct {
	Dir                string
	Username, Password string
	// Before, if set, is called before the answer to each blob request. A test can block a
	// download there.
	Before func(repository string)

	blobs atomic.Int64
}

// Blobs returns the number of blobs served.
func (r *Registry) Blobs() int64 { return r.blobs.Load() }

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if user, pass, _ := req.BasicAuth(); r.Username != "" && (user != r.Username || pass != r.Password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return
	}
	rest, ok := strings.CutPrefix(req.URL.Path, "/v2/")
	if !ok {
		refuse(w, http.StatusNotFound, "NAME_UNKNOWN")
		return
	}
	if rest == "" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if name, ref, ok := cutLast(rest, "/manifests/"); ok && name != "" {
		r.manifest(w, req, ref)
		return
	}
	if name, ref, ok := cutLast(rest, "/blobs/"); ok && name != "" {
		if r.Before != nil {
			r.Before(name)
		}
		r.blobs.Add(1)
		r.blob(w, req, ref, "application/octet-stream", "BLOB_UNKNOWN")
		return
	}
	refuse(w, http.StatusNotFound, "NAME_UNKNOWN")
}

func (r *Registry) manifest(w http.ResponseWriter, req *http.Request, ref string) {
	if d, err := digest.Parse(ref); err == nil {
		r.blob(w, req, d.String(), r.mediaType(d), "MANIFEST_UNKNOWN")
		return
	}
	data, err := os.ReadFile(filepath.Join(r.Dir, v1.ImageIndexFile))
	if err != nil {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
		return
	}
	var index v1.Index
	if err := json.Unmarshal(data, &index); err != nil {
		refuse(w, http.StatusInternalServerError, "UNKNOWN")
		return
	}
	for _, desc := range index.Manifests {
		if desc.Annotations[v1.AnnotationRefName] == ref {
			r.blob(w, req, desc.Digest.String(), desc.MediaType, "MANIFEST_UNKNOWN")
			return
		}
	}
	refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN")
}

// mediaType returns the media type in a manifest, because a registry must answer with it also
// for requests by digest.
func (r *Registry) mediaType(d digest.Digest) string {
	var self struct {
		MediaType string `json:"mediaType"`
	}
	data, err := os.ReadFile(r.path(d))
	if err != nil || json.Unmarshal(data, &self) != nil || self.MediaType == "" {
		return v1.MediaTypeImageManifest
	}
	return self.MediaType
}

func (r *Registry) blob(w http.ResponseWriter, req *http.Request, ref, mediaType, code string) {
	d, err := digest.Parse(ref)
	if err != nil {
		refuse(w, http.StatusBadRequest, "DIGEST_INVALID")
		return
	}
	f, err := os.Open(r.path(d))
	if err != nil {
		refuse(w, http.StatusNotFound, code)
		return
	}
	defer func() { _ = f.Close() }()
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Docker-Content-Digest", d.String())
	http.ServeContent(w, req, "", epoch, f)
}

func (r *Registry) path(d digest.Digest) string {
	return filepath.Join(r.Dir, "blobs", d.Algorithm().String(), d.Encoded())
}

// cutLast cuts around the last sep, because repository names may contain "/blobs/".
func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"errors": []map[string]string{{"code": code, "message": code}}})
}

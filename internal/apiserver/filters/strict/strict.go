// Package strict makes the API server refuse unknown and duplicate fields in
// the groups that are rik's own. Kubernetes leaves that to the client, and one
// that does not ask (curl, an old kubectl) gets a field silently dropped.
//
// It also says of values that cannot be decoded in which fields they are, and
// what is expected there. The decoder further in names types of Go, if anything.
package strict

import (
	"mime"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	patches "k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"rik.dev/rik/internal/apiserver/filters/body"
)

// parameter is the query parameter of create, update and patch.
const parameter = "fieldValidation"

// writes are the verbs that carry a document and know the parameter.
var writes = sets.New("create", "update", "patch")

// Config says what to be strict about.
type Config struct {
	// Groups are the API groups.
	Groups []string
	// Scheme knows their types.
	Scheme *runtime.Scheme
	// Bounded are further groups of which only the lists are bounded.
	Bounded []string
	// Lists bounds the items of lists by the last key of their path. A longer one is
	// refused before the document is decoded, which takes long when it is very long.
	Lists map[string]int
	// Serializer encodes refusals.
	Serializer runtime.NegotiatedSerializer
}

type filter struct {
	next       http.Handler
	groups     sets.Set[string]
	bounded    sets.Set[string]
	types      types
	decoder    runtime.Decoder
	serializer runtime.NegotiatedSerializer
}

// Wrap returns a handler that forces strict field validation on writes to the
// configured groups and passes everything else on unchanged. It belongs behind
// the filters that put the request info into the context.
func Wrap(next http.Handler, cfg Config) http.Handler {
	return &filter{
		next:       next,
		groups:     sets.New(cfg.Groups...),
		bounded:    sets.New(cfg.Bounded...),
		types:      typesOf(cfg.Scheme, cfg.Groups, cfg.Lists),
		serializer: cfg.Serializer,
		decoder: json.NewSerializerWithOptions(json.DefaultMetaFactory, cfg.Scheme, cfg.Scheme,
			json.SerializerOptions{Yaml: true, Strict: true}),
	}
}

// ServeHTTP implements http.Handler.
func (f *filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	strictly := ok && f.groups.Has(info.APIGroup)
	if !ok || !info.IsResourceRequest || !strictly && !f.bounded.Has(info.APIGroup) || !writes.Has(info.Verb) {
		f.next.ServeHTTP(w, r)
		return
	}
	if strictly {
		r = forced(r)
	}
	if err := f.check(r, info); err != nil {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(err, f.serializer, gv, w, r)
		return
	}
	f.next.ServeHTTP(w, r)
}

// forced copies the request: filters further out still hold the original, and
// the audit log shows what the client really asked.
func forced(r *http.Request) *http.Request {
	query := r.URL.Query()
	query.Set(parameter, metav1.FieldValidationStrict)
	out := r.WithContext(r.Context())
	u := *r.URL
	u.RawQuery = query.Encode()
	out.URL = &u
	return out
}

// texts are the media types of documents that are looked at.
var texts = []string{mediaJSON, mediaYAML, mediaMergePatch, mediaStrategicPatch, mediaJSONPatch, mediaApply}

// The media types of documents. A document that has none counts as JSON.
const (
	mediaJSON           = runtime.ContentTypeJSON
	mediaYAML           = runtime.ContentTypeYAML
	mediaMergePatch     = string(patches.MergePatchType)
	mediaStrategicPatch = string(patches.StrategicMergePatchType)
	mediaJSONPatch      = string(patches.JSONPatchType)
	mediaApply          = string(patches.ApplyYAMLPatchType)
)

// check reads the document before the server does, and leaves it to be read.
func (f *filter) check(r *http.Request, info *request.RequestInfo) error {
	mediaType := mediaJSON
	if header := r.Header.Get("Content-Type"); header != "" {
		var err error
		if mediaType, _, err = mime.ParseMediaType(header); err != nil {
			return nil //nolint:nilerr // the server says what is wrong with it
		}
	}
	if !slices.Contains(texts, mediaType) {
		return nil
	}
	content, whole, err := body.Peek(r)
	if err != nil || !whole {
		return err
	}
	if err := f.types.check(content, mediaType, info); err != nil {
		return err
	}
	if mediaType == mediaApply && f.groups.Has(info.APIGroup) {
		return f.checkApply(content)
	}
	return nil
}

// checkApply decodes the document of a server-side apply strictly: the server
// answers an unknown field with status 500, as if it were to blame, and a client
// may then try for ever.
func (f *filter) checkApply(body []byte) error {
	if _, _, err := f.decoder.Decode(body, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

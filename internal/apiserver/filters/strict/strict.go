// Package strict makes the API server refuse unknown and duplicate fields in rik's own groups.
// Kubernetes leaves the choice to the client. If the client does not request it (such as curl
// or an old kubectl), the field is silently dropped.
//
// For values that cannot be decoded, the package also reports the fields and the expected
// types. The server's decoder reports at most Go types.
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

// writes are the verbs with a document that support the parameter.
var writes = sets.New("create", "update", "patch")

// Config defines which groups are checked.
type Config struct {
	// Groups are the API groups whose documents are checked strictly.
	Groups []string
	// Scheme contains their types.
	Scheme *runtime.Scheme
	// Bounded are additional groups for which only the lengths of lists are checked.
	Bounded []string
	// Lists is the maximum number of items of lists, by the last key of their path. A longer list
	// is refused before the document is decoded, because decoding a very long one takes long.
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

// Wrap returns a handler that forces strict field validation on writes to the configured groups
// and passes all other requests on unchanged. It must run after the filters that add the
// request info to the context.
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
	if !ok || !info.IsResourceRequest || body.IsStream(info) || !strictly && !f.bounded.Has(info.APIGroup) || !writes.Has(info.Verb) {
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

// forced returns a copy of the request, because outer filters still use the original. The audit
// log therefore shows the client's own request.
func forced(r *http.Request) *http.Request {
	query := r.URL.Query()
	query.Set(parameter, metav1.FieldValidationStrict)
	out := r.WithContext(r.Context())
	u := *r.URL
	u.RawQuery = query.Encode()
	out.URL = &u
	return out
}

// texts are the media types of documents that are checked.
var texts = []string{mediaJSON, mediaYAML, mediaMergePatch, mediaStrategicPatch, mediaJSONPatch, mediaApply}

// Media types of documents. A document without one counts as JSON.
const (
	mediaJSON           = runtime.ContentTypeJSON
	mediaYAML           = runtime.ContentTypeYAML
	mediaMergePatch     = string(patches.MergePatchType)
	mediaStrategicPatch = string(patches.StrategicMergePatchType)
	mediaJSONPatch      = string(patches.JSONPatchType)
	mediaApply          = string(patches.ApplyYAMLPatchType)
)

// check reads the document before the server does, and restores the body.
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

// checkApply decodes the document of a server-side apply strictly. The server answers an
// unknown field with status 500, like an internal error, and a client may then retry forever.
func (f *filter) checkApply(body []byte) error {
	if _, _, err := f.decoder.Decode(body, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

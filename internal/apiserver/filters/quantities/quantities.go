// Package quantities refuses documents with quantities that would occupy a processor of the API
// server for hours: see package quantity. The decoder after this filter would process them, and
// no deadline of a request ends that.
package quantities

import (
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	patches "k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/quantity"
	"rik.dev/rik/internal/apiserver/filters/body"
)

// Wrap returns a handler that refuses such documents, and passes all other requests on
// unchanged. It must run after authorization, because it reads the body.
func Wrap(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var gv schema.GroupVersion
		info, ok := request.RequestInfoFrom(r.Context())
		if ok && body.IsStream(info) {
			next.ServeHTTP(w, r)
			return
		}
		if ok {
			gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		}
		if err := check(r); err != nil {
			responsewriters.ErrorNegotiated(err, serializer, gv, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// check reads the document before the server does, and restores the body.
func check(r *http.Request) error {
	if r.Body == nil || r.Body == http.NoBody || r.Method != http.MethodPost && r.Method != http.MethodPut && r.Method != http.MethodPatch {
		return nil
	}
	if r.Header.Get("Upgrade") != "" {
		return nil // a stream
	}
	content, whole, err := body.Peek(r)
	if err != nil || !whole {
		return err
	}
	if err := validate(content, r.Header.Get("Content-Type")); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// validate treats a document with a missing or unknown media type as JSON.
func validate(content []byte, contentType string) error {
	mediaType, _, _ := mime.ParseMediaType(contentType)
	switch mediaType {
	case runtime.ContentTypeProtobuf:
		return quantity.CheckProtobuf(content)
	case string(patches.JSONPatchType):
		return quantity.CheckPatch(content)
	case runtime.ContentTypeYAML, string(patches.ApplyYAMLPatchType):
		if !quantity.Suspicious(content) {
			return nil
		}
		document, err := yaml.YAMLToJSON(content)
		if err != nil {
			return nil //nolint:nilerr // the server says what is wrong with it
		}
		return quantity.CheckJSON(document)
	}
	return quantity.CheckJSON(content)
}

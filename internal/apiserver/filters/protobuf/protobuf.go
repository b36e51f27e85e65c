// Package protobuf allows typed clients to write types that are defined by CRDs. Those of
// client-go send protobuf for every type that is Kubernetes' own, such as a negotiated
// Deployment. "kubectl create deployment" is one such client. Kubernetes' handler of CRDs
// advertises that it accepts protobuf, and then panics.
package protobuf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"rik.dev/rik/internal/apiserver/filters/body"
)

// Config defines which types are defined by CRDs.
type Config struct {
	// Defined reports whether a type is defined by a CRD.
	Defined func(schema.GroupResource) bool
	// Serializer encodes refusals.
	Serializer runtime.NegotiatedSerializer
}

// Wrap returns a handler that converts objects of types defined by CRDs from protobuf to JSON,
// and passes all other requests on unchanged. It refuses kinds that client-go does not have,
// because their protobuf cannot be decoded.
func Wrap(next http.Handler, c Config) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !c.concerned(info, r) {
			next.ServeHTTP(w, r)
			return
		}
		translated, err := translate(r)
		if err != nil {
			gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			responsewriters.ErrorNegotiated(err, c.Serializer, gv, w, r)
			return
		}
		next.ServeHTTP(w, translated)
	})
}

func (c Config) concerned(info *request.RequestInfo, r *http.Request) bool {
	if !info.IsResourceRequest || !slices.Contains([]string{"create", "update"}, info.Verb) {
		return false
	}
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && mediaType == runtime.ContentTypeProtobuf && c.Defined(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
}

// translate returns the request with its object in JSON.
func translate(r *http.Request) (*http.Request, error) {
	content, whole, err := body.Peek(r)
	if err != nil {
		return nil, err
	}
	if !whole {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", body.Max))
	}
	document, err := toJSON(content)
	if err != nil {
		return nil, err
	}
	out := r.Clone(r.Context())
	out.Header.Set("Content-Type", runtime.ContentTypeJSON)
	out.Header.Set("Content-Length", strconv.Itoa(len(document)))
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(document)), int64(len(document))
	return out, nil
}

// toJSON decodes an object of Kubernetes' own kinds.
func toJSON(body []byte) ([]byte, error) {
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil, negotiation.NewUnsupportedMediaTypeError([]string{runtime.ContentTypeJSON, runtime.ContentTypeYAML})
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the object: %v", err))
	}
	object.GetObjectKind().SetGroupVersionKind(*kind)
	document, err := json.Marshal(object)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("writing the object as JSON: %w", err))
	}
	return document, nil
}

// Package strategic allows clients to send strategic merge patches to types that are defined by
// CRDs. Kubernetes refuses them, because it has no patch strategies for such types. kubectl
// sends them for every kind that it was built with, such as a negotiated Deployment: in the
// second apply, edit, set image and rollout restart.
//
// [Wrap] computes the patch with the strategies of the kind in client-go and passes its result
// on as a merge patch. The merge patch applies only to one resourceVersion. It is computed
// again if another write came in between. The result is therefore the same as if the server had
// applied the patch itself.
package strategic

import (
	"bytes"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	// maxBody is the API server's own limit of a request's body, in bytes.
	maxBody = 3 << 20
	// attempts is how often a patch is tried again after a conflict. The server applies other
	// patches to the object that it has at the moment of the write. Here others may write between
	// the read and the write, and on a busy server that can happen a few times in a row.
	attempts = 20
)

// scaleKind is the type of the subresource scale for every resource.
var scaleKind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}

// Config defines which types are defined by CRDs.
type Config struct {
	// CRD returns the CRD of a type, or nil if it has none.
	CRD func(schema.GroupResource) *apiextensionsv1.CustomResourceDefinition
	// Serializer encodes refusals.
	Serializer runtime.NegotiatedSerializer
}

type filter struct {
	next http.Handler
	Config
}

// Wrap returns a handler that translates strategic merge patches of types that are defined by
// CRDs and are in client-go's scheme. It passes all other requests on unchanged. It must run
// after authorization: like the server for other types, it reads the object for a user who may
// patch it.
func Wrap(next http.Handler, c Config) http.Handler { return &filter{next: next, Config: c} }

// ServeHTTP implements http.Handler.
func (f *filter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || info.Verb != "patch" || !isStrategic(r) {
		f.next.ServeHTTP(w, r)
		return
	}
	typed := f.typed(info)
	if typed == nil {
		f.next.ServeHTTP(w, r)
		return
	}
	if err := f.patch(w, r, info, typed); err != nil {
		gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
		responsewriters.ErrorNegotiated(err, f.Serializer, gv, w, r)
	}
}

func isStrategic(r *http.Request) bool {
	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && mediaType == string(types.StrategicMergePatchType)
}

// typed returns an empty object of the kind of a request. It returns nil if the kind is not
// defined by a CRD or not in client-go.
func (f *filter) typed(info *request.RequestInfo) runtime.Object {
	crd := f.CRD(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource})
	if crd == nil {
		return nil
	}
	kind := schema.GroupVersionKind{Group: info.APIGroup, Version: info.APIVersion, Kind: crd.Spec.Names.Kind}
	if info.Subresource == "scale" {
		kind = scaleKind
	}
	object, err := scheme.Scheme.New(kind)
	if err != nil {
		return nil
	}
	return object
}

// patch responds to the request, or returns an error.
func (f *filter) patch(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, typed runtime.Object) error {
	document, err := readPatch(r)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		current, err := f.current(r, info)
		if err != nil {
			return err
		}
		merge, guarded, err := translate(current, document, typed)
		if err != nil {
			return err
		}
		answer := f.send(r, merge)
		if guarded && answer.code == http.StatusConflict && attempt < attempts && r.Context().Err() == nil {
			continue
		}
		answer.copyTo(w)
		return nil
	}
}

// readPatch decodes the body. As for other types, a duplicate field is an error, a warning or
// ignored, as the client requests.
func readPatch(r *http.Request) (map[string]any, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the patch: %v", err))
	}
	if len(body) > maxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", maxBody))
	}
	document, repeated, err := decode(body)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	if len(repeated) == 0 {
		return document, nil
	}
	switch r.URL.Query().Get("fieldValidation") {
	case metav1.FieldValidationIgnore:
	case metav1.FieldValidationStrict:
		return nil, apierrors.NewBadRequest(runtime.NewStrictDecodingError(repeated).Error())
	default:
		for _, problem := range repeated {
			warning.AddWarning(r.Context(), "", problem.Error())
		}
	}
	return document, nil
}

// current reads the object to patch, in the version of the request.
func (f *filter) current(r *http.Request, info *request.RequestInfo) (map[string]any, error) {
	get := *info
	get.Verb = "get"
	inner := r.Clone(request.WithRequestInfo(r.Context(), &get))
	inner.Method, inner.Body, inner.ContentLength, inner.URL.RawQuery = http.MethodGet, http.NoBody, 0, ""
	inner.Header = http.Header{"Accept": {runtime.ContentTypeJSON}, "User-Agent": r.Header["User-Agent"]}
	answer := f.run(inner)
	if answer.code != http.StatusOK {
		return nil, answer.refusal(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name)
	}
	object := map[string]any{}
	if err := utiljson.Unmarshal(answer.body.Bytes(), &object); err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("reading the object to patch: %w", err))
	}
	return object, nil
}

// send passes the merge patch on. All other parts of the request stay unchanged: dry run, field
// manager and field validation are in the query.
func (f *filter) send(r *http.Request, merge []byte) *answer {
	inner := r.Clone(r.Context())
	inner.Header.Set("Content-Type", string(types.MergePatchType))
	inner.Header.Set("Content-Length", strconv.Itoa(len(merge)))
	inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(merge)), int64(len(merge))
	return f.run(inner)
}

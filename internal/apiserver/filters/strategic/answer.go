package strategic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answer buffers a response of the server until the filter has decided what to do with it.
// Objects have at most a few megabytes.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// run calls the server behind the filter.
func (f *filter) run(r *http.Request) *answer {
	a := &answer{header: http.Header{}}
	f.next.ServeHTTP(a, r)
	a.WriteHeader(http.StatusOK) // the default if the handler sets no code
	return a
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	a.code = cmp.Or(a.code, code)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

func (a *answer) copyTo(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body.Bytes()) // the client may have disconnected
}

// refusal converts the response to an error.
func (a *answer) refusal(resource schema.GroupResource, name string) error {
	status := metav1.Status{}
	if err := json.Unmarshal(a.body.Bytes(), &status); err != nil || status.Code == 0 {
		return apierrors.NewGenericServerResponse(a.code, "get", resource, name, a.body.String(), 0, true)
	}
	return &apierrors.StatusError{ErrStatus: status}
}

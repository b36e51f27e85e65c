package strategic

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// answer keeps what the server says until it is known who is to read it. Objects
// are a few megabytes at most.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// run asks the server behind the filter.
func (f *filter) run(r *http.Request) *answer {
	a := &answer{header: http.Header{}}
	f.next.ServeHTTP(a, r)
	a.WriteHeader(http.StatusOK) // as for every handler that says nothing else
	return a
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) {
	if a.code == 0 {
		a.code = code
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}

func (a *answer) copyTo(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	w.WriteHeader(a.code)
	_, _ = w.Write(a.body.Bytes()) // a client that went away hears nothing
}

// refusal is the answer as an error.
func (a *answer) refusal(resource schema.GroupResource, name string) error {
	status := metav1.Status{}
	if err := json.Unmarshal(a.body.Bytes(), &status); err != nil || status.Code == 0 {
		return apierrors.NewGenericServerResponse(a.code, "get", resource, name, a.body.String(), 0, true)
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// Package reply writes the answers of the controller's handlers, which are outside of the API server.
package reply

import (
	"encoding/json"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// JSON writes answer with a status code. With an error it writes a Status instead, as the API server
// does: the one of an API error, or ServiceUnavailable for another error.
func JSON(w http.ResponseWriter, code int, answer any, err error) {
	if err != nil {
		var known apierrors.APIStatus
		if !errors.As(err, &known) {
			known = apierrors.NewServiceUnavailable(err.Error())
		}
		status := known.Status()
		status.Kind, status.APIVersion = "Status", "v1"
		code, answer = int(status.Code), status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer) // the client has disconnected
}

package syncer

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/excerpt"
)

// The reasons of problems. Users see them in an annotation and in events.
const (
	reasonConflict  = "Conflict"
	reasonImmutable = "Immutable"
	reasonRefused   = "Refused"
	reasonNamespace = "NamespaceConflict"
	reasonTypeEnds  = "TypeEnding"
	reasonStatus    = "StatusNotReported"
	reasonLoop      = "FromAnotherKCP"
	reasonYielded   = "ReplicasYielded"
	reasonPaused    = "DeletesPaused"
)

// maxProblem limits the text of a problem in bytes. The message of an event may have 1 KiB.
const maxProblem = 1000

// problem is why an object cannot be as upstream wants it, until the user acts.
type problem struct{ reason, message string }

func (p problem) String() string {
	return excerpt.Of(p.reason+": "+p.message, maxProblem)
}

var secrets = schema.GroupResource{Resource: "secrets"}

// refusal reports whether an error is a final answer to the content of the request, and not a
// temporary failure.
func refusal(err error, resource schema.GroupResource) (problem, bool) {
	var status apierrors.APIStatus
	switch {
	case !errors.As(err, &status):
		return problem{}, false
	case apierrors.HasStatusCause(err, "NamespaceTerminating"):
		return problem{}, false
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsForbidden(err),
		apierrors.IsMethodNotSupported(err), apierrors.IsRequestEntityTooLargeError(err),
		apierrors.IsNotAcceptable(err), apierrors.IsUnsupportedMediaType(err), isUntypable(err):
		return problem{reason: reasonRefused, message: quoted(err, status, resource)}, true
	}
	return problem{}, false
}

// isTooLong reports whether a write was refused because the annotations of the object are too
// large in total.
func isTooLong(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.annotations" && c.Type == metav1.CauseType(field.ErrorTypeTooLong)
	})
}

// isUntypable detects an apply with fields that are not in the schema of the server. The server
// answers it with an internal error.
func isUntypable(err error) bool {
	//prose:foreign
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed to create typed patch object")
}

// quoted returns the message of the server. For a Secret, it returns only the names of the wrong
// fields, because a message may contain their values.
func quoted(err error, status apierrors.APIStatus, resource schema.GroupResource) string {
	if resource != secrets {
		return err.Error()
	}
	text := fmt.Sprintf("the cluster refuses the Secret (%s)", status.Status().Reason)
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			text += fmt.Sprintf("; %s: %s", cause.Field, cause.Type)
		}
	}
	return text
}

// isInvalid reports whether an update was not possible. A new object with the same content may
// still be possible. The syncer asks the server about that.
func isInvalid(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

// isObjectGone reports whether a server answered that the object does not exist. It returns false
// if the server does not serve the type: then the path is unknown, and the answer says nothing
// about objects.
func isObjectGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isNamespaceMissing reports whether a write failed because its namespace does not exist.
func isNamespaceMissing(err error, namespace string) bool {
	var status apierrors.APIStatus
	if namespace == "" || !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces" && details.Name == namespace
}

// isUnreachable reports whether an error may come from the connection to a server, or from a
// server that does not answer any client.
func isUnreachable(err error) bool {
	var transport *url.Error
	return apierrors.IsServiceUnavailable(err) || errors.As(err, &transport)
}

// isLost reports whether a request did not reach the server. It returns false for a timeout,
// because the request may have arrived.
func isLost(err error) bool {
	var transport *url.Error
	return errors.As(err, &transport) && !transport.Timeout() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

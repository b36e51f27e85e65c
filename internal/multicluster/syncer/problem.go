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
)

// The reasons of problems, which users see in an annotation and as those of events.
const (
	reasonConflict  = "Conflict"
	reasonImmutable = "Immutable"
	reasonRefused   = "Refused"
	reasonNamespace = "NamespaceConflict"
	reasonTypeEnds  = "TypeEnding"
	reasonStatus    = "StatusNotReported"
	reasonLoop      = "FromAnotherKCP"
	reasonYielded   = "ReplicasYielded"
)

// maxProblem bounds a problem's text: an event's message may have 1 KiB.
const maxProblem = 1000

// problem is why an object cannot be as upstream wants it, until somebody acts.
type problem struct{ reason, message string }

func (p problem) String() string {
	text := p.reason + ": " + p.message
	if len(text) > maxProblem {
		text = strings.ToValidUTF8(text[:maxProblem], "") + "..."
	}
	return text
}

var secrets = schema.GroupResource{Resource: "secrets"}

// refusal says whether an error is the server's last word on what was sent, rather
// than something that passes by itself.
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

// isTooLong says whether a write was refused because the object's annotations are too large
// together.
func isTooLong(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.annotations" && c.Type == metav1.CauseType(field.ErrorTypeTooLong)
	})
}

// isUntypable finds an apply of fields that the server's schema does not have, which it
// answers as if the fault were its own.
func isUntypable(err error) bool {
	return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "failed to create typed patch object")
}

// quoted is the server's message; of a Secret only which fields are wrong, because a
// message may hold their values.
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

// isInvalid says that an update was not possible, not whether the very
// object would be possible as a new one: that is asked of the server.
func isInvalid(err error) bool { return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) }

// isObjectGone says whether a server answered that it has no such object, as against
// having no such type: the path is unknown then, and says nothing of objects.
func isObjectGone(err error) bool {
	return apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// isNamespaceMissing says whether a write failed because its namespace is not there.
func isNamespaceMissing(err error, namespace string) bool {
	var status apierrors.APIStatus
	if namespace == "" || !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces" && details.Name == namespace
}

// isUnreachable says whether an error may be about the way to a server, or about a server
// that answers nobody.
func isUnreachable(err error) bool {
	var transport *url.Error
	return apierrors.IsServiceUnavailable(err) || errors.As(err, &transport)
}

// isLost says whether a request did not reach a server. One that is not answered in time may
// have.
func isLost(err error) bool {
	var transport *url.Error
	return errors.As(err, &transport) && !transport.Timeout() && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled)
}

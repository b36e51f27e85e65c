package restv0

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// problem is the body of every error response.
type problem struct {
	Message string              `json:"error"`
	Reason  metav1.StatusReason `json:"reason"`
	Code    int                 `json:"code"`
	// Details lists the invalid fields.
	Details []detail `json:"details,omitempty"`
	// Instances lists the instances that were created and could not be deleted again.
	Instances []string `json:"instances,omitempty"`

	retryAfter int
}

type detail struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// Error returns the message.
func (p *problem) Error() string { return p.Message }

func invalidField(name, message string) *problem {
	p := &problem{Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest, Message: message}
	if name != "" {
		p.Message = name + ": " + message
		p.Details = []detail{{name, message}}
	}
	return p
}

func notFound(message string) *problem {
	return &problem{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound, Message: message}
}

func conflict(message string) *problem {
	return &problem{Code: http.StatusConflict, Reason: metav1.StatusReasonAlreadyExists, Message: message}
}

// malformed returns the problem for a body that could not be decoded.
func malformed(err error) *problem {
	p := invalidField("", err.Error())
	for _, one := range leaves(err) {
		var at kjson.FieldError
		var misfit *field.Error
		switch {
		case errors.As(one, &misfit):
			p.Details = append(p.Details, detail{misfit.Field, misfit.ErrorBody()})
		case errors.As(one, &at):
			p.Details = append(p.Details, detail{at.FieldPath(), one.Error()})
		}
	}
	return p
}

// leaves splits joined errors.
func leaves(err error) []error {
	for ; err != nil; err = errors.Unwrap(err) {
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			var out []error
			for _, one := range joined.Unwrap() {
				out = append(out, leaves(one)...)
			}
			return out
		}
		if errors.Unwrap(err) == nil {
			return []error{err}
		}
	}
	return nil
}

// invalid returns the problem for the fields of a definition that cannot be translated.
func invalid(errs field.ErrorList) *problem {
	p := &problem{Code: http.StatusBadRequest, Reason: metav1.StatusReasonInvalid}
	var messages []string
	for _, err := range errs {
		p.Details = append(p.Details, detail{err.Field, err.ErrorBody()})
		messages = append(messages, err.Error())
	}
	p.Message = strings.Join(messages, "; ")
	return p
}

// problemOf translates every error to the form of this API. An invalid object gives status
// 400, as published. The rest of the API returns 422.
func problemOf(err error) *problem {
	var own *problem
	if errors.As(err, &own) {
		return own
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return &problem{Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError, Message: err.Error()}
	}
	s := status.Status()
	p := &problem{Code: int(s.Code), Reason: s.Reason, Message: s.Message}
	if p.Code == http.StatusUnprocessableEntity {
		p.Code = http.StatusBadRequest
	}
	if s.Details != nil {
		p.retryAfter = int(s.Details.RetryAfterSeconds)
		for _, cause := range s.Details.Causes {
			p.Details = append(p.Details, detail{cause.Field, cause.Message})
		}
	}
	return p
}

// translated replaces an object's field paths in an error with the names of the body's fields.
// Longer paths must come first.
func translated(err error, paths ...string) error {
	if !apierrors.IsInvalid(err) {
		return err
	}
	p := problemOf(err)
	names := strings.NewReplacer(paths...)
	p.Message = names.Replace(p.Message)
	for i := range p.Details {
		p.Details[i].Field = names.Replace(p.Details[i].Field)
	}
	return p
}

package clierror

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// CodeError ends the process with a code and without a message.
type CodeError struct{ Code int }

// Error implements error; users never see it.
func (e CodeError) Error() string { return fmt.Sprintf("exit code %d", e.Code) }

// TimeoutError reports a wait that timed out.
type TimeoutError struct{ What string }

// Error names what did not happen.
func (e TimeoutError) Error() string { return "timed out waiting for " + e.What }

// AbsentError reports that something does not exist which has no API type.
type AbsentError struct{ error }

// NotFound returns an AbsentError.
func NotFound(err error) AbsentError { return AbsentError{err} }

// Unwrap returns the error itself.
func (a AbsentError) Unwrap() error { return a.error }

// NodeError is an error that a node reported. Its text says nothing about the connection to the
// server.
type NodeError struct{ error }

// FromNode makes an error a NodeError.
func FromNode(err error) NodeError { return NodeError{err} }

// Unwrap returns the error itself.
func (e NodeError) Unwrap() error { return e.error }

// AboveOne is an error of a command for which exit code 1 has another meaning.
type AboveOne struct{ error }

// AboveOneOf makes an error an AboveOne.
func AboveOneOf(err error) AboveOne { return AboveOne{err} }

// Unwrap returns the error itself.
func (a AboveOne) Unwrap() error { return a.error }

// AdvisedError is an error with a next step.
type AdvisedError struct {
	error
	next string
}

// WithNext adds a next step to an error.
func WithNext(err error, next string) AdvisedError { return AdvisedError{err, next} }

// Unwrap returns the error itself.
func (a AdvisedError) Unwrap() error { return a.error }

// FileError reports a file of the command line that cannot be read.
type FileError struct{ error }

// File makes an error a FileError.
func File(err error) FileError { return FileError{err} }

// Unwrap returns the cause.
func (e FileError) Unwrap() error { return e.error }

// InvalidError reports a file whose content is invalid.
type InvalidError struct {
	// Source names the file, or what else the content is from.
	Source string
	Err    error
}

// Error names the file and the mistake.
func (e InvalidError) Error() string { return e.Source + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e InvalidError) Unwrap() error { return e.Err }

// MalformedError reports a file that is not YAML.
type MalformedError struct{ InvalidError }

// Unwrap returns the cause.
func (e MalformedError) Unwrap() error { return e.InvalidError }

// FatalError is the panic value that carries an error out of kubectl's commands.
type FatalError struct {
	Message string
	Code    int
}

// Error is the text that kubectl would have printed.
func (f *FatalError) Error() string { return strings.TrimSpace(f.Message) }

// NextForKCP is the next step after ErrNoKCP.
const NextForKCP = `"rikctl config use NAME" or --kubeconfig FILE chooses another server; "rik kcp" runs a kcp`

// ErrNoKCP reports a server that does not split objects.
var ErrNoKCP = errors.New("this server is not a kcp: it does not serve clusters." + workloadv1alpha1.GroupName)

// IsUnknownType reports whether the server lacks the type, as opposed to the object. The status
// has this cause only if no handler of the type made the answer.
func IsUnknownType(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

package rikctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// The exit codes. Two commands end with the code of the program that they ran, once it ran:
// "rikctl exec" and "rikctl diff". "rikctl plan" ends with 1 if something would change.
const (
	// ExitOK: success.
	ExitOK = 0
	// ExitError: any error without a more specific code.
	ExitError = 1
	// ExitUsage: the command line or the configuration is wrong; no request was sent.
	ExitUsage = 2
	// ExitNotFound: the object, or the type, does not exist.
	ExitNotFound = 3
	// ExitConflict: the object already exists, or has changed in the meantime.
	ExitConflict = 4
	// ExitUnreachable: the server was not reachable, or a timeout expired.
	ExitUnreachable = 5
	// ExitInvalid: the server refused the request as invalid.
	ExitInvalid = 6
	// ExitDenied: the server does not accept the user's credentials, or the user lacks
	// permission.
	ExitDenied = 7
	// ExitInterrupted: the user interrupted the command; the same code as a shell's for SIGINT.
	ExitInterrupted = 130
)

// outcome is the message and the exit code of a failed command.
type outcome struct {
	code int
	text string
	next string
}

func (o outcome) print(w io.Writer) {
	if o.text != "" {
		_, _ = fmt.Fprintln(w, strings.ReplaceAll(o.text, "See 'kubectl ", "See '"+cmdline.Program+" "))
	}
	if o.next != "" {
		_, _ = fmt.Fprintln(w, "next: "+o.next)
	}
}

// exitError ends the process with a code and without a message.
type exitError struct{ code int }

// Error implements error; users never see it.
func (e exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// timeoutError reports a wait that timed out.
type timeoutError struct{ what string }

// Error names what did not happen.
func (e timeoutError) Error() string { return "timed out waiting for " + e.what }

// absentError reports that something does not exist which has no API type.
type absentError struct{ error }

// Unwrap returns the error itself.
func (a absentError) Unwrap() error { return a.error }

// aboveOne is an error of a command for which exit code 1 has another meaning.
type aboveOne struct{ error }

// Unwrap returns the error itself.
func (a aboveOne) Unwrap() error { return a.error }

// advised is an error with a next step.
type advised struct {
	error
	next string
}

// Unwrap returns the error itself.
func (a advised) Unwrap() error { return a.error }

// misconfigured is an error in the configuration.
type misconfigured interface {
	error
	// Next is what the user can do.
	Next() string
}

// validate returns the message and the exit code for an error.
func validate(err error, server string) outcome {
	var (
		exit     exitError
		stopped  *fatal
		usage    cmdline.UsageError
		reported cmdline.AdvisedError
		file     fileError
		setup    misconfigured
		advice   advised
		// scripted: code 1 has another meaning
		scripted aboveOne
	)
	switch {
	case errors.As(err, &exit):
		return outcome{code: exit.code}
	case errors.Is(err, context.Canceled):
		return outcome{code: ExitInterrupted}
	case errors.As(err, &stopped):
		return validateText(stopped.Error(), stopped.code, server)
	case errors.As(err, &reported):
		return outcome{ExitUsage, "error: " + reported.Error(), reported.Next}
	case errors.As(err, &usage):
		return outcome{ExitUsage, "error: " + usage.Error(), cmdline.NextHelp(usage.Command)}
	case errors.As(err, &file):
		return outcome{ExitUsage, "error: " + err.Error(), ""}
	case errors.As(err, &setup):
		return outcome{ExitUsage, "error: " + setup.Error(), setup.Next()}
	}
	o := validateTyped(err, server)
	if errors.As(err, &advice) {
		o.next = advice.next
	}
	if errors.As(err, &scripted) && o.code == ExitError {
		o.code = ExitUsage
	}
	return o
}

func validateTyped(err error, server string) outcome {
	var late timeoutError
	if errors.As(err, &late) || errors.Is(err, context.DeadlineExceeded) {
		return outcome{code: ExitUnreachable, text: "error: " + err.Error()}
	}
	if absent := (absentError{}); errors.Is(err, errNoKCP) || errors.As(err, &absent) {
		return outcome{code: ExitNotFound, text: "error: " + err.Error()}
	}
	if meta.IsNoMatchError(err) {
		return outcome{ExitNotFound, "error: " + err.Error(), nextForType}
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && !isForeign(err.Error()) {
		if status.Status().Reason == metav1.StatusReasonUnsupportedMediaType && status.Status().Message == "unknown" {
			return foreign("error: "+err.Error(), server)
		}
		o := validateReason(status.Status().Reason, server)
		o.text = "error: " + err.Error()
		return o
	}
	if text, known := cmdutil.StandardErrorMessage(err); known {
		return validateText(text, ExitError, server)
	}
	code := ExitError
	if invalid := (invalidError{}); errors.As(err, &invalid) {
		code = ExitInvalid
	}
	return validateText("error: "+err.Error(), code, server)
}

const nextForType = `"rikctl api-resources" lists the types that the server has`

// validateReason maps an API server's reason to an exit code.
func validateReason(reason metav1.StatusReason, server string) outcome {
	switch reason {
	case metav1.StatusReasonNotFound, metav1.StatusReasonGone:
		return outcome{code: ExitNotFound}
	case metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict:
		return outcome{code: ExitConflict}
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
		metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge,
		metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType:
		return outcome{code: ExitInvalid}
	case metav1.StatusReasonUnauthorized:
		return outcome{code: ExitDenied, next: fmt.Sprintf("%s does not know the credentials of the configuration: \"rikctl config view\" shows which are used", server)}
	case metav1.StatusReasonForbidden:
		return outcome{code: ExitDenied, next: `"rikctl auth can-i --list" shows what you may do; an administrator can grant more`}
	case metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable:
		return outcome{code: ExitUnreachable, next: "try again in a moment"}
	}
	return outcome{code: ExitError}
}

// serverReason finds the reason in kubectl's text of a server error.
var serverReason = regexp.MustCompile(`Error from server \((\w+)\)`)

// validateText handles errors of which only the text is left.
func validateText(text string, code int, server string) outcome {
	// Remove kubectl's advice, because no CRDs exist for the types that rik lacks.
	text = strings.ReplaceAll(text, "\nensure CRDs are installed first", "")
	o := outcome{code: code, text: text}
	if isForeign(text) {
		return foreign(text, server)
	}
	if o.code == ExitOK {
		o.code = ExitError
	}
	if m := serverReason.FindStringSubmatch(text); m != nil {
		o = validateReason(metav1.StatusReason(m[1]), server)
		o.text = text
		return o
	}
	if strings.HasPrefix(text, "Error from server: ") && containsAny(text, ofConnections) {
		o.next = server + " answered that it met an error of its own: its log says more"
		return o
	}
	for _, rule := range textRules {
		if !containsAny(text, rule.marks) {
			continue
		}
		o.code, o.next = rule.code, rule.next
		if strings.Contains(o.next, "%s") {
			o.next = fmt.Sprintf(o.next, server)
		}
		return o
	}
	return o
}

func foreign(text, server string) outcome {
	return outcome{ExitUsage, text, server + " does not answer as the API: check that cluster.server begins with https:// and names the API's port, which is 5000 unless the server was told another"}
}

// isForeign reports whether the answer is not from an API server: the client spoke plain HTTP to
// the TLS port, or the port belongs to another program.
func isForeign(text string) bool {
	return containsAny(text, []string{
		"the server rejected our request for an unknown reason",
		// gRPC answers other protocols with this, on the ports of the scheduler and of nodes.
		"(UnsupportedMediaType): unknown",
	})
}

func containsAny(text string, marks []string) bool {
	for _, m := range marks {
		if strings.Contains(text, m) {
			return true
		}
	}
	return false
}

// ofConnections lists parts of connection errors. In an error that the server returned they
// refer to a connection of the server, for example to its datastore.
var ofConnections = []string{
	"connection refused", "was refused", "no such host", "no route to host", "i/o timeout", "network is unreachable", "connection reset", "x509: ", "rpc error: ",
}

// textRules are applied in order; the first match decides.
var textRules = []struct {
	marks []string
	code  int
	next  string
}{
	{[]string{"You must be logged in"}, ExitDenied,
		`%s does not know the credentials of the configuration: "rikctl config view" shows which are used`},
	{[]string{"x509: certificate is valid for", "x509: certificate is not valid for any names", "x509: cannot validate certificate for"}, ExitUnreachable,
		"the certificate of %s does not name that address: use one that it names in cluster.server, or start the server with --tls-san for this one"},
	{[]string{"x509: certificate signed by unknown authority", "failed to verify certificate"}, ExitUnreachable,
		"the certificate of %s is not of the authority in the configuration: it may be another cluster, or one that was set up anew (its data directory has the current config.yaml)"},
	{[]string{" is forbidden: "}, ExitDenied, `"rikctl auth can-i --list" shows what you may do; an administrator can grant more`},
	{[]string{"unable to upgrade connection: container "}, ExitInvalid, ""},
	{[]string{"unable to upgrade connection"}, ExitUnreachable, `"rikctl get nodes" shows whether the instance's node is Ready`},
	{[]string{"server gave HTTP response to HTTPS client"}, ExitUnreachable, "%s speaks plain http: another program may have the port"},
	{[]string{"connection refused", "was refused"}, ExitUnreachable,
		`nothing listens at %s: start the server there with "sudo rik server" or "systemctl start rik", or choose another cluster with --config or $RIKCONFIG`},
	{[]string{"no such host"}, ExitUnreachable, "the name in %s is not known: check cluster.server of the configuration"},
	{[]string{"Unable to connect to the server", "no route to host", "i/o timeout", "network is unreachable",
		"connection reset", "Client.Timeout exceeded"}, ExitUnreachable, "check that %s can be reached from here"},
	{[]string{"timed out waiting", "deadline exceeded", "timed out", "condition not met"}, ExitUnreachable, ""},
	{[]string{`no matches for kind "Pod" in version "v0"`, `no matches for kind "Function" in version`}, ExitInvalid,
		`the file is a definition in the published form: "rikctl create workload -f FILE" takes it`},
	{[]string{"the server doesn't have a resource type", "no matches for kind", "no kind is registered"}, ExitNotFound, nextForType},
	{[]string{"field not declared in schema", "unknown field", "is invalid", "strict decoding error", "failed to create typed patch object"}, ExitInvalid, ""},
	{[]string{"Apply failed with"}, ExitConflict,
		`leave the field out of the file to keep its value, or take it over with "rikctl apply --force-conflicts"`},
	{[]string{"the object has been modified"}, ExitConflict, ""},
	{[]string{"unable to match a printer", "custom-columns format", "error parsing jsonpath", "error parsing template",
		"template format specified but", "jsonpath wait", "unrecognized jsonpath", "unexpected path string"}, ExitUsage, ""},
	{[]string{"error parsing", "error converting YAML"}, ExitInvalid, ""},
	{[]string{"the path \""}, ExitUsage, ""},
	{[]string{"See 'rikctl", "for help and examples", "unknown flag", "unknown shorthand", "arguments in resource/name form",
		"must be specified", "Unexpected args", "You must specify", "must specify", "invalid argument", "required flag(s)",
		"no name was specified", "Invalid timeout value", "doesn't work with --server-side"}, ExitUsage, ""},
	{[]string{"not found"}, ExitNotFound, ""},
}

// fileError reports a file of the command line that cannot be read.
type fileError struct{ error }

// Unwrap returns the cause.
func (e fileError) Unwrap() error { return e.error }

// invalidError reports a file whose content is invalid.
type invalidError struct {
	source string
	err    error
}

// Error names the file and the mistake.
func (e invalidError) Error() string { return e.source + ": " + e.err.Error() }

// Unwrap returns the cause.
func (e invalidError) Unwrap() error { return e.err }

// malformedError reports a file that is not YAML.
type malformedError struct{ invalidError }

// Unwrap returns the cause.
func (e malformedError) Unwrap() error { return e.invalidError }

// fatal is the panic value that carries an error out of kubectl's commands.
type fatal struct {
	message string
	code    int
}

// Error is the text that kubectl would have printed.
func (f *fatal) Error() string { return strings.TrimSpace(f.message) }

// errNoKCP reports a server that does not split objects.
var errNoKCP = errors.New("this server is no kcp: it serves no clusters." + workloadv1alpha1.GroupName)

// isUnknownType reports whether the server lacks the type, as opposed to the object. The status
// has this cause only if no handler of the type made the answer.
func isUnknownType(err error) bool {
	return apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Package clierror has the errors of rikctl and what each of them means to the user: the exit
// code, the message and the next step. Commands return errors with the types of this package, or
// those of kubectl and of the API server. OutcomeOf turns any of them into an Outcome.
package clierror

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

// Outcome is the message and the exit code of a failed command.
type Outcome struct {
	// Code is the exit code.
	Code int
	// Text is the message; empty if the command has printed it.
	Text string
	// Next is the next step; empty if there is none.
	Next string
}

// Print writes the message and the next step.
func (o Outcome) Print(w io.Writer) {
	if o.Text != "" {
		_, _ = fmt.Fprintln(w, strings.ReplaceAll(o.Text, "See 'kubectl ", "See '"+cmdline.Program+" "))
	}
	if o.Next != "" {
		_, _ = fmt.Fprintln(w, "next: "+o.Next)
	}
}

// misconfigured is an error in the configuration.
type misconfigured interface {
	error
	// Next is what the user can do.
	Next() string
}

// OutcomeOf returns the message, the exit code and the next step for an error. server is the
// address of the API server for the message; empty if it is unknown.
func OutcomeOf(err error, server string) Outcome {
	var (
		exit     CodeError
		stopped  *FatalError
		usage    cmdline.UsageError
		reported cmdline.AdvisedError
		file     FileError
		setup    misconfigured
		advice   AdvisedError
		// scripted: code 1 has another meaning
		scripted AboveOne
	)
	switch {
	case errors.As(err, &exit):
		return Outcome{Code: exit.Code}
	case errors.Is(err, context.Canceled):
		return Outcome{Code: ExitInterrupted}
	case errors.As(err, &stopped):
		return outcomeOfText(stopped.Error(), stopped.Code, server)
	case errors.As(err, &reported):
		return Outcome{ExitUsage, "error: " + reported.Error(), reported.Next}
	case errors.As(err, &usage):
		return Outcome{ExitUsage, "error: " + usage.Error(), cmdline.NextHelp(usage.Command)}
	case errors.As(err, &file):
		return Outcome{ExitUsage, "error: " + err.Error(), ""}
	case errors.As(err, &setup):
		return Outcome{ExitUsage, "error: " + setup.Error(), setup.Next()}
	}
	o := outcomeOfTyped(err, server)
	if errors.As(err, &advice) {
		o.Next = advice.next
	}
	if errors.As(err, &scripted) && o.Code == ExitError {
		o.Code = ExitUsage
	}
	return o
}

func outcomeOfTyped(err error, server string) Outcome {
	var late TimeoutError
	if errors.As(err, &late) || errors.Is(err, context.DeadlineExceeded) {
		return Outcome{Code: ExitUnreachable, Text: "error: " + err.Error()}
	}
	if absent := (AbsentError{}); errors.Is(err, ErrNoKCP) || errors.As(err, &absent) {
		return Outcome{Code: ExitNotFound, Text: "error: " + err.Error()}
	}
	if meta.IsNoMatchError(err) {
		return Outcome{ExitNotFound, "error: " + err.Error(), NextForType}
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) && !IsForeign(err.Error()) {
		if status.Status().Reason == metav1.StatusReasonUnsupportedMediaType && status.Status().Message == "unknown" {
			return foreign("error: "+err.Error(), server)
		}
		o := outcomeOfReason(status.Status().Reason, server)
		o.Text = "error: " + err.Error()
		return o
	}
	if reported := (NodeError{}); errors.As(err, &reported) {
		return Outcome{Code: ExitError, Text: "error: " + err.Error()}
	}
	if text, known := cmdutil.StandardErrorMessage(err); known {
		return outcomeOfText(text, ExitError, server)
	}
	code := ExitError
	if invalid := (InvalidError{}); errors.As(err, &invalid) {
		code = ExitInvalid
	}
	return outcomeOfText("error: "+err.Error(), code, server)
}

// NextForType is the next step for a user who named a type that the server does not have.
const NextForType = `"rikctl api-resources" lists the types that the server has`

// outcomeOfReason maps an API server's reason to an exit code.
func outcomeOfReason(reason metav1.StatusReason, server string) Outcome {
	switch reason {
	case metav1.StatusReasonNotFound, metav1.StatusReasonGone:
		return Outcome{Code: ExitNotFound}
	case metav1.StatusReasonAlreadyExists, metav1.StatusReasonConflict:
		return Outcome{Code: ExitConflict}
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
		metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge,
		metav1.StatusReasonNotAcceptable, metav1.StatusReasonUnsupportedMediaType:
		return Outcome{Code: ExitInvalid}
	case metav1.StatusReasonUnauthorized:
		return Outcome{Code: ExitDenied, Next: fmt.Sprintf("%s does not accept the credentials of the configuration; \"rikctl config view\" shows them", server)}
	case metav1.StatusReasonForbidden:
		return Outcome{Code: ExitDenied, Next: `"rikctl auth can-i --list" shows what you may do; an administrator can grant more`}
	case metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout,
		metav1.StatusReasonTooManyRequests, metav1.StatusReasonServiceUnavailable:
		return Outcome{Code: ExitUnreachable, Next: "try again in a moment"}
	}
	return Outcome{Code: ExitError}
}

// serverReason finds the reason in kubectl's text of a server error.
var serverReason = regexp.MustCompile(`Error from server \((\w+)\)`)

// outcomeOfText handles errors of which only the text is left.
func outcomeOfText(text string, code int, server string) Outcome {
	// Remove kubectl's advice, because no CRDs exist for the types that rik lacks.
	text = strings.ReplaceAll(text, "\nensure CRDs are installed first", "")
	o := Outcome{Code: code, Text: text}
	if IsForeign(text) {
		return foreign(text, server)
	}
	if o.Code == ExitOK {
		o.Code = ExitError
	}
	if m := serverReason.FindStringSubmatch(text); m != nil {
		o = outcomeOfReason(metav1.StatusReason(m[1]), server)
		o.Text = text
		return o
	}
	if strings.HasPrefix(text, "Error from server: ") && ContainsAny(text, ofConnections) {
		o.Next = "the error occurred in the server " + server + "; its log has the cause"
		return o
	}
	for _, rule := range textRules {
		if !ContainsAny(text, rule.marks) {
			continue
		}
		o.Code, o.Next = rule.code, rule.next
		if strings.Contains(o.Next, "%s") {
			o.Next = fmt.Sprintf(o.Next, server)
		}
		return o
	}
	return o
}

func foreign(text, server string) Outcome {
	return Outcome{ExitUsage, text, server + " is not the API server: check that cluster.server begins with https:// and has the API port, which is 5000 by default"}
}

// IsForeign reports whether the answer is not from an API server: the client spoke plain HTTP to
// the TLS port, or the port belongs to another program.
func IsForeign(text string) bool {
	return ContainsAny(text, []string{
		"the server rejected our request for an unknown reason",
		// gRPC answers other protocols with this, on the ports of the scheduler and of nodes.
		"(UnsupportedMediaType): unknown",
	})
}

// ContainsAny reports whether a text contains one of the marks.
func ContainsAny(text string, marks []string) bool {
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
//
//prose:foreign
var textRules = []struct {
	marks []string
	code  int
	next  string
}{
	{[]string{"You must be logged in"}, ExitDenied,
		`%s does not accept the credentials of the configuration; "rikctl config view" shows them`},
	{[]string{"x509: certificate is valid for", "x509: certificate is not valid for any names", "x509: cannot validate certificate for"}, ExitUnreachable,
		"the certificate of %s does not name that address; set cluster.server to an address that it names, or start the server with --tls-san for this one"},
	{[]string{"x509: certificate signed by unknown authority", "failed to verify certificate"}, ExitUnreachable,
		"the certificate of %s is not signed by the authority in the configuration. This may be another cluster, or the cluster was set up again. Its data directory has the current config.yaml"},
	{[]string{" is forbidden: "}, ExitDenied, `"rikctl auth can-i --list" shows what you may do; an administrator can grant more`},
	{[]string{"unable to upgrade connection: container "}, ExitInvalid, ""},
	{[]string{"unable to upgrade connection"}, ExitUnreachable, `"rikctl get nodes" shows whether the instance's node is Ready`},
	{[]string{"server gave HTTP response to HTTPS client"}, ExitUnreachable, "%s answers in plain HTTP; another program may use the port"},
	{[]string{"connection refused", "was refused"}, ExitUnreachable,
		`nothing listens on %s; start the server there with "sudo rik server" or "systemctl start rik", or choose another cluster with --config or $RIKCONFIG`},
	{[]string{"no such host"}, ExitUnreachable, "the host name in %s cannot be resolved; check cluster.server of the configuration"},
	{[]string{"Unable to connect to the server", "no route to host", "i/o timeout", "network is unreachable",
		"connection reset", "Client.Timeout exceeded"}, ExitUnreachable, "check that this machine can reach %s"},
	{[]string{"timed out waiting", "deadline exceeded", "timed out", "condition not met"}, ExitUnreachable, ""},
	{[]string{`no matches for kind "Pod" in version "v0"`, `no matches for kind "Function" in version`}, ExitInvalid,
		`the file is a definition in the published form: "rikctl create workload -f FILE" accepts it`},
	{[]string{"the server doesn't have a resource type", "no matches for kind", "no kind is registered"}, ExitNotFound, NextForType},
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

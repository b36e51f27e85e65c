package instance

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/rpc/nodev1"
)

// idleTimeout ends a session without data. Kubelets use the same value.
const idleTimeout = 4 * time.Hour

// maxCommandBytes bounds a command line. A URL holds less anyway.
const maxCommandBytes = 256 << 10

// Exec runs a command in a container. It supports the protocols of Kubernetes clients: SPDY and
// WebSocket v5.
type Exec struct {
	opener     opener
	authorizer authorizer.Authorizer
}

var _ rest.Connecter = &Exec{}

// New returns an empty options object of the subresource.
func (e *Exec) New() runtime.Object { return &rik.InstanceExecOptions{} }

// Destroy does nothing, because the storage belongs to instances.
func (e *Exec) Destroy() {}

// NewConnectOptions returns an object for the query parameters.
func (e *Exec) NewConnectOptions() (runtime.Object, bool, string) {
	return &rik.InstanceExecOptions{}, false, ""
}

// ConnectMethods returns POST for SPDY and GET for WebSockets.
func (e *Exec) ConnectMethods() []string { return []string{http.MethodGet, http.MethodPost} }

// Connect returns the handler that opens and serves the session.
func (e *Exec) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*rik.InstanceExecOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T for exec", options))
	}
	if errs := validateExec(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rik.Kind("InstanceExecOptions"), name, errs)
	}
	if err := permit(ctx, e.authorizer, "exec", name); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { e.serve(ctx, w, req, name, o, responder) }), nil
}

func validateExec(o *rik.InstanceExecOptions) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for _, word := range o.Command {
		total += len(word) + 1
	}
	if len(o.Command) == 0 || o.Command[0] == "" {
		errs = append(errs, field.Required(field.NewPath("command"), "must contain the program to run"))
	}
	if total > maxCommandBytes {
		errs = append(errs, field.TooLong(field.NewPath("command"), "", maxCommandBytes))
	}
	if !o.Stdin && !o.Stdout && !o.Stderr {
		errs = append(errs, field.Required(field.NewPath("stdout"), "at least one of stdin, stdout and stderr must be true"))
	}
	return errs
}

// permit checks the permission to create a session. A WebSocket arrives as a GET, and a user
// who may only read an instance must not act in it.
func permit(ctx context.Context, az authorizer.Authorizer, subresource, name string) error {
	user, ok := genericapirequest.UserFrom(ctx)
	decision := authorizer.DecisionDeny
	var err error
	if ok && az != nil {
		decision, _, err = az.Authorize(ctx, authorizer.AttributesRecord{
			User: user, Verb: "create", Namespace: genericapirequest.NamespaceValue(ctx), Name: name,
			APIGroup: rik.GroupName, APIVersion: rikv1alpha1.SchemeGroupVersion.Version,
			Resource: "instances", Subresource: subresource, ResourceRequest: true,
		})
	}
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err == nil {
		err = fmt.Errorf(`this needs the verb "create" on instances/%s`, subresource)
	}
	return apierrors.NewForbidden(rik.Resource("instances/"+subresource), name, err)
}

// serve opens the session before it responds, so that a failure is an ordinary error. It then
// connects the client's streams to the session.
func (e *Exec) serve(ctx context.Context, w http.ResponseWriter, req *http.Request, name string, o *rik.InstanceExecOptions, responder rest.Responder) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	session, err := e.opener.open(ctx, name, o.Container, func(s *nodev1.OpenSession) {
		s.Kind = &nodev1.OpenSession_Exec{Exec: &nodev1.ExecSession{Command: o.Command, Stdin: o.Stdin, Tty: o.TTY}}
	})
	if err != nil {
		responder.Error(err)
		return
	}
	defer session.Close()
	// After the upgrade only the connection itself shows that the client has disconnected.
	// Without this, a command without output would keep running.
	w = &watched{ResponseWriter: w, gone: session.Close}
	run := &execution{session: session}
	// A terminal has only one output.
	streams := &remotecommand.Options{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr && !o.TTY, TTY: o.TTY}
	if wsstream.IsWebSocketRequest(req) {
		serveWebSocket(w, req, run, streams)
		return
	}
	remotecommand.ServeExec(w, req, run, name, "", o.Container, o.Command, streams,
		idleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
}

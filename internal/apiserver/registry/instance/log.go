package instance

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Log serves the output of an instance's containers as plain text.
type Log struct{ opener opener }

var (
	_ rest.Connecter       = &Log{}
	_ rest.StorageMetadata = &Log{}
)

// New returns the object with which admission is called, the same as that of NewConnectOptions.
func (l *Log) New() runtime.Object { return &rik.InstanceLogOptions{} }

// Destroy does nothing, because the storage belongs to instances.
func (l *Log) Destroy() {}

// NewConnectOptions returns an object for the query parameters.
func (l *Log) NewConnectOptions() (runtime.Object, bool, string) {
	return &rik.InstanceLogOptions{}, false, ""
}

// ConnectMethods returns only GET.
func (l *Log) ConnectMethods() []string { return []string{http.MethodGet} }

// ProducesMIMETypes returns text, the type of the response.
func (l *Log) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject returns an empty string, because the response is not an object.
func (l *Log) ProducesObject(string) any { return "" }

// Connect opens the session and returns the handler that copies it.
func (l *Log) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	o, ok := options.(*rik.InstanceLogOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T for log", options))
	}
	if errs := validateLog(o); len(errs) > 0 {
		return nil, apierrors.NewInvalid(rik.Kind("InstanceLogOptions"), name, errs)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		session, err := l.opener.open(ctx, name, o.Container, func(s *nodev1.OpenSession) {
			s.Kind = &nodev1.OpenSession_Log{Log: &nodev1.LogSession{
				Follow: o.Follow, Previous: o.Previous, TailLines: o.TailLines, SinceSeconds: o.SinceSeconds, Timestamps: o.Timestamps,
			}}
		})
		if err != nil {
			responder.Error(err)
			return
		}
		// If the client disconnects, this ends a Recv that waits for the next line.
		stop := context.AfterFunc(req.Context(), session.Close)
		defer func() {
			stop()
			session.Close()
		}()
		copyLog(w, session, responder)
	}), nil
}

func validateLog(o *rik.InstanceLogOptions) field.ErrorList {
	var errs field.ErrorList
	if o.TailLines != nil && *o.TailLines < 0 {
		errs = append(errs, field.Invalid(field.NewPath("tailLines"), *o.TailLines, "must not be negative"))
	}
	if o.SinceSeconds != nil && *o.SinceSeconds < 1 {
		errs = append(errs, field.Invalid(field.NewPath("sinceSeconds"), *o.SinceSeconds, "must be at least 1"))
	}
	if o.Follow && o.Previous {
		errs = append(errs, field.Forbidden(field.NewPath("follow"), "must not be set together with previous, because the log of a previous run is complete"))
	}
	return errs
}

// copyLog copies lines until the session ends. An error before the first line is returned as a
// status. After it the connection is cut, so that the client does not treat a partial log as
// complete.
func copyLog(w http.ResponseWriter, session Session, responder rest.Responder) {
	started := false
	start := func() {
		if !started {
			started = true
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(http.StatusOK)
			flush(w)
		}
	}
	for {
		message, err := session.Recv()
		if data := message.GetOutput().GetData(); len(data) > 0 {
			start()
			if _, err := w.Write(data); err != nil {
				return // the client has disconnected
			}
			flush(w)
		}
		if err == nil && message.GetEnd() == nil {
			continue
		}
		if err := result(message.GetEnd(), err); err == nil {
			start()
		} else if !started {
			responder.Error(apierrors.NewBadRequest(err.Error()))
		} else {
			panic(http.ErrAbortHandler)
		}
		return
	}
}

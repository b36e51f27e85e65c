package instance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Hold suspends an instance, or resumes it. It is a POST that responds when the node reports
// success. The status of the instance follows from the node's next observation.
//
// It is a connection and not the creation of an object, because it has no body. A suspension
// has one parameter, rikv1alpha1.SuspendToDisk.
type Hold struct {
	opener    opener
	suspended bool
}

var _ rest.Connecter = &Hold{}

// New returns an empty object of the subresource.
func (h *Hold) New() runtime.Object { return &rik.Instance{} }

// Destroy does nothing, because the storage belongs to instances.
func (h *Hold) Destroy() {}

// NewConnectOptions returns no options.
func (h *Hold) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

// ConnectMethods returns only POST. A GET, which a browser or a proxy may repeat, must not
// suspend an instance. The verb of RBAC is therefore create.
func (h *Hold) ConnectMethods() []string { return []string{http.MethodPost} }

// Connect returns the handler that sends the request to the node.
func (h *Hold) Connect(ctx context.Context, name string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		order, err := h.order(req)
		if err == nil {
			err = h.hold(ctx, name, order)
		}
		if err != nil {
			responder.Error(err)
			return
		}
		responder.Object(http.StatusOK, &metav1.Status{Status: metav1.StatusSuccess})
	}), nil
}

// order parses the request and validates it before it is sent to the node.
func (h *Hold) order(req *http.Request) (*nodev1.HoldSession, error) {
	o := &nodev1.HoldSession{Suspended: h.suspended}
	text := req.URL.Query().Get(rikv1alpha1.SuspendToDisk)
	if text == "" {
		return o, nil
	}
	toDisk, err := strconv.ParseBool(text)
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the parameter %s must be true or false, not %q", rikv1alpha1.SuspendToDisk, text))
	case toDisk && !h.suspended:
		return nil, apierrors.NewBadRequest("resume finds the suspended instance in memory or on disk by itself: leave " + rikv1alpha1.SuspendToDisk + " out")
	}
	o.ToDisk = toDisk
	return o, nil
}

func (h *Hold) hold(ctx context.Context, name string, order *nodev1.HoldSession) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	i, err := h.opener.placed(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case i.DeletionTimestamp != nil:
		return conflict(name, "it is being deleted")
	case i.Status.Phase == rik.InstanceCompleted, i.Status.Phase == rik.InstanceFailed, i.Status.Phase == rik.InstanceTerminated:
		return conflict(name, fmt.Sprintf("it does not run any more; its phase is %s", i.Status.Phase))
	}
	session, err := h.opener.openOn(ctx, i, "", func(s *nodev1.OpenSession) {
		s.Kind = &nodev1.OpenSession_Hold{Hold: order}
	})
	if err != nil {
		return err
	}
	defer session.Close()
	defer context.AfterFunc(ctx, session.Close)()
	for {
		message, err := session.Recv()
		switch {
		case err != nil && ctx.Err() != nil:
			return apierrors.NewTimeoutError(fmt.Sprintf("node %q has not answered about instance %q; the request may still be carried out", i.Spec.NodeName, name), 0)
		case err != nil:
			return apierrors.NewServiceUnavailable(fmt.Sprintf("sending the request for instance %[2]q to node %[1]q: %[3]v; the request may have been carried out", i.Spec.NodeName, name, result(nil, err)))
		case message.GetEnd() != nil:
			return h.answer(i, message.GetEnd())
		}
	}
}

// answer converts the node's last message to an API error, or nil.
func (h *Hold) answer(i *rik.Instance, end *nodev1.SessionEnd) error {
	if end.GetError() == "" {
		return nil
	}
	switch end.GetProblem() {
	case nodev1.Problem_PROBLEM_NOT_RUNNING:
		return conflict(i.Name, "it is not running: "+end.GetError())
	case nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE:
		return conflict(i.Name, fmt.Sprintf("node %q does not have the instance yet, or does not have it any more; try again", i.Spec.NodeName))
	case nodev1.Problem_PROBLEM_UNSUPPORTED:
		return apierrors.NewBadRequest(fmt.Sprintf("node %q cannot suspend or resume instance %q: %s", i.Spec.NodeName, i.Name, end.GetError()))
	case nodev1.Problem_PROBLEM_LOST:
		return conflict(i.Name, end.GetError())
	default:
		return apierrors.NewInternalError(fmt.Errorf("node %q: %s", i.Spec.NodeName, end.GetError()))
	}
}

func conflict(name, why string) error {
	return apierrors.NewConflict(rik.Resource("instances"), name, errors.New(why))
}

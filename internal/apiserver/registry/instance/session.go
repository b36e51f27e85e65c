package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/rpc/nodev1"
)

// ErrNotConnected is returned by Open while a node has no connection.
var ErrNotConnected = errors.New("the node is not connected")

// ErrNotOpened is returned by Open when a connected node does not open the session in time.
var ErrNotOpened = errors.New("the node did not open the session")

// ErrBusy is returned by Open when no further session may be opened on a node now.
var ErrBusy = errors.New("the node has too many sessions")

// Sessions open streams to instances over the nodes' connections to the controller.
type Sessions interface {
	// Open opens a session on a node and returns when the node has accepted it. The implementation
	// sets the number and the secret. The error is ErrNotConnected if the node has no connection
	// or loses it meanwhile, ErrNotOpened if the node does not answer, and ErrBusy if it may not
	// have further sessions. The session ends with ctx.
	Open(ctx context.Context, node string, open *nodev1.OpenSession) (Session, error)
}

// Session is one stream. Send, Recv and Close may be called concurrently with each other, and
// Recv by one goroutine at a time.
type Session interface {
	// Send sends a message to the node. It blocks while the node does not read.
	Send(input *nodev1.SessionInput) error
	// Recv returns the node's next message. It returns io.EOF or another error if none follows,
	// at the latest after a SessionEnd, after Close, or when the node's connection is lost. While
	// it is not called, the node stops.
	Recv() (*nodev1.SessionOutput, error)
	// Close ends the session. The node is informed unless it ended the session itself.
	Close()
}

// opener finds an instance's node and container and opens a session there.
type opener struct {
	instances *genericregistry.Store
	revisions Revisions
	sessions  Sessions
}

func (o opener) open(ctx context.Context, name, container string, kind func(*nodev1.OpenSession)) (Session, error) {
	i, err := o.placed(ctx, name)
	if err != nil {
		return nil, err
	}
	if container, err = o.container(ctx, i, container); err != nil {
		return nil, err
	}
	return o.openOn(ctx, i, container, kind)
}

// placed returns an instance that has a node.
func (o opener) placed(ctx context.Context, name string) (*rik.Instance, error) {
	obj, err := o.instances.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	i, ok := obj.(*rik.Instance)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("programmer error: %T is not an instance", obj))
	}
	if i.Spec.NodeName == "" {
		return nil, apierrors.NewConflict(rik.Resource("instances"), name, errors.New(strings.TrimSuffix("it has no node yet: "+i.Status.Message, ": ")))
	}
	return i, nil
}

func (o opener) openOn(ctx context.Context, i *rik.Instance, container string, kind func(*nodev1.OpenSession)) (Session, error) {
	if o.sessions == nil {
		return nil, apierrors.NewServiceUnavailable("this server is not connected to nodes")
	}
	open := &nodev1.OpenSession{Uid: string(i.UID), Container: container}
	kind(open)
	s, err := o.sessions.Open(ctx, i.Spec.NodeName, open)
	if errors.Is(err, ErrNotConnected) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %q of instance %q is not connected; try again when `rikctl get nodes` shows it Ready", i.Spec.NodeName, i.Name))
	}
	if errors.Is(err, ErrNotOpened) {
		return nil, apierrors.NewGenericServerResponse(http.StatusGatewayTimeout, "connect", rik.Resource("instances"), i.Name,
			fmt.Sprintf("node %q of instance %q: %v; try again, and see the log of the riklet on that node", i.Spec.NodeName, i.Name, err), 0, true)
	}
	if errors.Is(err, ErrBusy) {
		return nil, apierrors.NewTooManyRequests(err.Error(), 0)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("opening a session on node %q: %w", i.Spec.NodeName, err))
	}
	return s, nil
}

// container checks the name of a container, or chooses the first.
func (o opener) container(ctx context.Context, i *rik.Instance, name string) (string, error) {
	rev, err := o.revisions.Get(ctx, i.Spec.Revision)
	if apierrors.IsNotFound(err) {
		return name, nil // the node still has the template
	}
	if err != nil {
		return "", err
	}
	var names []string
	for _, c := range rev.Template.Processes() {
		names = append(names, c.Name)
	}
	for c := range rev.Template.InitContainers {
		names = append(names, rev.Template.InitContainers[c].Name)
	}
	if name == "" {
		if len(names) == 0 {
			return "", nil
		}
		return names[0], nil
	}
	if rev.Template.Virtual() {
		names = append(names, rikv1alpha1.ConsoleLog)
	}
	if !slices.Contains(names, name) {
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %q is not in instance %q; it has: %s", name, i.Name, strings.Join(names, ", ")))
	}
	return name, nil
}

// result returns the error of a session that has ended: the one of Recv, or the node's. It is nil
// for a successful end.
func result(end *nodev1.SessionEnd, err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return errors.New("the connection to the node was lost")
	case err != nil:
		return err
	case end.GetError() != "":
		return errors.New(end.GetError())
	}
	return nil
}

// flush sends the written data to the client.
func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

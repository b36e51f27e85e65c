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

// InitialCredit is what either side of a session may send before it hears of
// more; the protocol of nodes says so.
const InitialCredit = 256 << 10

// ErrNotConnected is what Open returns while a node has no connection.
var ErrNotConnected = errors.New("the node is not connected")

// ErrBusy is what Open returns when no further session may be opened on a node now.
var ErrBusy = errors.New("the node has no room for a session")

// Sessions open streams to instances over the connections that their nodes
// keep to the controller.
type Sessions interface {
	// Open asks a node for a session. The stream's number is filled in by the
	// implementation, here and in everything sent. It returns an error that is
	// ErrNotConnected when the node cannot be asked, ErrBusy when it may not be asked
	// for more. The session ends with ctx.
	Open(ctx context.Context, node string, open *nodev1.OpenStream) (Session, error)
}

// Session is one stream. Send and Recv may be called at the same time as each
// other and as Close, but neither by two goroutines.
type Session interface {
	Send(data *nodev1.StreamData) error
	// Recv returns what the node sent; io.EOF or another error once nothing
	// follows, at the latest after a message with closed set, after Close, or
	// when the node's connection is lost.
	Recv() (*nodev1.StreamData, error)
	// Close ends the session; the node is told unless it was the one to end it.
	Close()
}

// opener finds an instance's node and container and opens a session there.
type opener struct {
	instances *genericregistry.Store
	revisions Revisions
	sessions  Sessions
}

func (o opener) open(ctx context.Context, name, container string, kind func(*nodev1.OpenStream)) (Session, error) {
	i, err := o.placed(ctx, name)
	if err != nil {
		return nil, err
	}
	if container, err = o.container(ctx, i, container); err != nil {
		return nil, err
	}
	return o.openOn(ctx, i, container, kind)
}

// placed finds an instance that a node has.
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
		return nil, apierrors.NewConflict(rik.Resource("instances"), name, errors.New(strings.TrimSuffix("no node has it yet: "+i.Status.Message, ": ")))
	}
	return i, nil
}

func (o opener) openOn(ctx context.Context, i *rik.Instance, container string, kind func(*nodev1.OpenStream)) (Session, error) {
	if o.sessions == nil {
		return nil, apierrors.NewServiceUnavailable("this server has no connections to nodes")
	}
	open := &nodev1.OpenStream{Uid: string(i.UID), Container: container}
	kind(open)
	s, err := o.sessions.Open(ctx, i.Spec.NodeName, open)
	if errors.Is(err, ErrNotConnected) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %q of instance %q is not connected; try again when `rikctl get nodes` shows it Ready", i.Spec.NodeName, i.Name))
	}
	if errors.Is(err, ErrBusy) {
		return nil, apierrors.NewTooManyRequests(err.Error(), 0)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("opening a session on node %q: %w", i.Spec.NodeName, err))
	}
	return s, nil
}

// container checks a container's name, or chooses the first.
func (o opener) container(ctx context.Context, i *rik.Instance, name string) (string, error) {
	rev, err := o.revisions.Get(ctx, i.Spec.Revision)
	if apierrors.IsNotFound(err) {
		return name, nil // the node still knows what it runs
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

// consumed tells the node of the room that reading made, not at every piece
// but at every quarter of what it starts with.
type consumed struct {
	session Session
	bytes   int64
}

// add does not fail: a node that has said its last word takes no message, and
// what it said before that is still to be read. Of a lost node Recv tells.
func (c *consumed) add(n int) {
	c.bytes += int64(n)
	if c.bytes < InitialCredit/4 {
		return
	}
	more := c.bytes
	c.bytes = 0
	_ = c.session.Send(&nodev1.StreamData{Credit: more})
}

// ended turns how a session ended into an error: nil for a good end.
func ended(d *nodev1.StreamData, err error) error {
	if err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the connection to the node was lost")
		}
		return err
	}
	if d.GetError() != "" {
		return errors.New(d.GetError())
	}
	return nil
}

// flush pushes what was written to the client.
func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

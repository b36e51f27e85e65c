package instance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/rpc/portstream"
)

// PortForward connects TCP connections of users to ports of an instance, each over its own
// WebSocket; see package portstream. The node dials the port from inside the instance's
// network.
type PortForward struct {
	opener     opener
	authorizer authorizer.Authorizer
}

var _ rest.Connecter = &PortForward{}

// New returns an empty object of the subresource.
func (p *PortForward) New() runtime.Object { return &rik.Instance{} }

// Destroy does nothing, because the storage belongs to instances.
func (p *PortForward) Destroy() {}

// NewConnectOptions returns no options: the port is a query parameter.
func (p *PortForward) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

// ConnectMethods returns GET, with which every WebSocket starts.
func (p *PortForward) ConnectMethods() []string { return []string{http.MethodGet} }

// Connect returns the handler that opens and serves the session.
func (p *PortForward) Connect(ctx context.Context, name string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	if err := permit(ctx, p.authorizer, "portforward", name); err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		port, err := wantedPort(req)
		if err != nil {
			responder.Error(err)
			return
		}
		p.serve(ctx, w, req, name, port, responder)
	}), nil
}

// wantedPort validates the request before anything is opened.
func wantedPort(req *http.Request) (int32, error) {
	text := req.URL.Query().Get(portstream.Parameter)
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, apierrors.NewBadRequest("the parameter " + portstream.Parameter + " must be a number between 1 and 65535, not " + strconv.Quote(text))
	}
	for _, offered := range websocket.Subprotocols(req) {
		if offered == portstream.Protocol && websocket.IsWebSocketUpgrade(req) {
			return int32(port), nil
		}
	}
	return 0, apierrors.NewBadRequest("port-forward needs a WebSocket with the subprotocol " + portstream.Protocol + "; use `rikctl port-forward`")
}

// serve opens the session before it responds, so that a failure is an ordinary error. Whether a
// process listens on the port is known only later.
func (p *PortForward) serve(ctx context.Context, w http.ResponseWriter, req *http.Request, name string, port int32, responder rest.Responder) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	session, err := p.opener.open(ctx, name, "", func(s *nodev1.OpenSession) {
		s.Kind = &nodev1.OpenSession_Port{Port: &nodev1.PortSession{Port: port}}
	})
	if err != nil {
		responder.Error(err)
		return
	}
	defer session.Close()
	upgrader := websocket.Upgrader{
		Subprotocols: []string{portstream.Protocol},
		// The default would split the client's data into small pieces.
		ReadBufferSize: nodev1.Piece, WriteBufferSize: nodev1.Piece,
	}
	ws, err := upgrader.Upgrade(w, req, nil)
	if err != nil {
		return // Upgrade has already answered the client
	}
	joinPort(portstream.New(ws), session)
}

// joinPort copies in both directions until the node ends the session or the client disconnects.
// It returns when all its goroutines have ended.
func joinPort(client *portstream.Stream, session Session) {
	var upward sync.WaitGroup
	upward.Go(func() {
		// After the client has disconnected, further data of the node has no receiver.
		defer session.Close()
		toNode(client, session)
	})
	if err := toClient(client, session); err != nil {
		client.Fail(err)
	} else {
		client.Finish()
	}
	upward.Wait()
	_ = client.Close()
}

// toNode sends the client's data, no faster than the node reads it. It returns when the client
// has disconnected, and drops data after the end of the session.
func toNode(client *portstream.Stream, session Session) {
	buffer := make([]byte, nodev1.Piece)
	for {
		n, err := client.Read(buffer)
		if n > 0 && session.Send(nodev1.NewInput(bytes.Clone(buffer[:n]))) != nil {
			_ = client.Wait() // the node's last message is on its way to the client
			return
		}
		if errors.Is(err, io.EOF) {
			_ = session.Send(nodev1.NewEndOfInput())
			_ = client.Wait()
			return
		}
		if err != nil {
			return
		}
	}
}

// toClient writes the instance's data until the session ends. It returns the error to report to
// the client.
func toClient(client *portstream.Stream, session Session) error {
	for {
		message, err := session.Recv()
		if data := message.GetOutput().GetData(); len(data) > 0 {
			if _, err := client.Write(data); err != nil {
				return nil //nolint:nilerr // it is gone, and there is nobody to tell
			}
		}
		if message.GetEndOfOutput() {
			_ = client.CloseWrite() // the session of a disconnected client ends elsewhere
		}
		if err != nil || message.GetEnd() != nil {
			return result(message.GetEnd(), err)
		}
	}
}

package instance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// serveWebSocket supports v5 of Kubernetes' protocol, in which a client can end its input, and
// v4 for older clients.
func serveWebSocket(w http.ResponseWriter, req *http.Request, x *execution, o *remotecommand.Options) {
	kind := func(wanted bool, k wsstream.ChannelType) wsstream.ChannelType {
		if wanted {
			return k
		}
		return wsstream.IgnoreChannel
	}
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  kind(o.Stdin, wsstream.ReadChannel),
		remotecommand.StreamStdOut: kind(o.Stdout, wsstream.WriteChannel),
		remotecommand.StreamStdErr: kind(o.Stderr, wsstream.WriteChannel),
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	}
	config := wsstream.ChannelProtocolConfig{Binary: true, Channels: channels}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: config,
		remotecommand.StreamProtocolV4Name: config,
	})
	conn.SetIdleTimeout(idleTimeout)
	_, streams, err := conn.Open(w, req.WithContext(calmly(req.Context())))
	if err != nil {
		return // Open has already answered the client
	}
	defer conn.Close()
	// An empty message informs the client that the connection is open.
	first := remotecommand.StreamErr
	if o.Stdout {
		first = remotecommand.StreamStdOut
	}
	if _, err := streams[first].Write(nil); err != nil {
		return
	}
	ctx, cancel := context.WithCancel(req.Context())
	defer cancel()
	var in io.Reader
	if o.Stdin {
		in = streams[remotecommand.StreamStdIn]
	}
	sizes := make(chan remotecommand.TerminalSize)
	go readSizes(ctx, streams[remotecommand.StreamResize], sizes)
	err = x.ExecInContainer(ctx, "", "", "", nil, in, streams[remotecommand.StreamStdOut], streams[remotecommand.StreamStdErr], o.TTY, sizes, 0)
	status, err := json.Marshal(execStatus(err))
	if err != nil {
		utilruntime.HandleError(err)
		return
	}
	conn.SetWriteDeadline(time.Minute)
	_, _ = streams[remotecommand.StreamErr].Write(status) // a disconnected client needs no status
}

// readSizes decodes the terminal's sizes until the client's stream ends.
func readSizes(ctx context.Context, from io.Reader, to chan<- remotecommand.TerminalSize) {
	defer close(to)
	decoder := json.NewDecoder(from)
	for {
		var size remotecommand.TerminalSize
		if decoder.Decode(&size) != nil {
			return
		}
		select {
		case to <- size:
		case <-ctx.Done():
			return
		}
	}
}

// execStatus returns the result of a command in the form of a kubelet.
func execStatus(err error) metav1.Status {
	var exit exitError
	switch {
	case err == nil:
		return metav1.Status{Status: metav1.StatusSuccess}
	case errors.As(err, &exit):
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Message: fmt.Sprintf("command terminated with non-zero exit code: %v", exit),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{
				Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(exit.code),
			}}},
		}
	default:
		return metav1.Status{
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
			Message: err.Error(),
		}
	}
}

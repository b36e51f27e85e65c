package app

import (
	"context"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// pipeBytes is the size of the buffer of an in-process connection, in each direction.
const pipeBytes = 1 << 20

// pipe is a listener that only this process can reach.
type pipe struct{ *bufconn.Listener }

func newPipe() pipe { return pipe{bufconn.Listen(pipeBytes)} }

// options makes a client use the pipe. The peer is this process, so nothing is encrypted.
func (p pipe) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return p.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	}
}

// dial connects a client over the pipe.
func (p pipe) dial(context.Context) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///in-process", p.options()...)
}

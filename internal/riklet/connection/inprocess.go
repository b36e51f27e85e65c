package connection

import (
	"context"
	"slices"

	"google.golang.org/grpc"
)

// maxMessage is the same limit as for connections over the network.
const maxMessage = 32 << 20

// InProcess returns a DialFunc for a peer in this process. The options connect to it.
func InProcess(options []grpc.DialOption) DialFunc {
	options = append(slices.Clone(options), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	return func(context.Context) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///in-process", options...)
	}
}

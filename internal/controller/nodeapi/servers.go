package nodeapi

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"rik.dev/rik/internal/controller/servers"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Servers are the servers of the cluster.
type Servers interface {
	// Follow calls send with the list of servers and then with every change, until ctx ends or send
	// fails.
	Follow(ctx context.Context, send func(*nodev1.Servers) error) error
	// Join announces a server that has shown a token, and returns what all servers share.
	Join(ctx context.Context, request *nodev1.JoinServerRequest) (*nodev1.JoinServerResponse, error)
}

func (s *Server) sendServers(c *connection) {
	if s.cfg.Servers == nil {
		return
	}
	err := s.cfg.Servers.Follow(c.ctx, func(m *nodev1.Servers) error {
		return c.send(&nodev1.ControllerMessage{Message: &nodev1.ControllerMessage_Servers{Servers: m}})
	})
	if err != nil {
		c.end(fmt.Errorf("sending the servers to node %s: %w", c.node, err))
	}
}

// JoinServer gives a server the keys of the cluster. The connection is encrypted: the trusted
// listener is inside the process, and the other one has TLS.
func (s *Server) JoinServer(ctx context.Context, request *nodev1.JoinServerRequest) (*nodev1.JoinServerResponse, error) {
	response, err := s.joinServer(ctx, request)
	s.audit(joinedServer(ctx, request, err), err)
	return response, err
}

func joinedServer(ctx context.Context, request *nodev1.JoinServerRequest, err error) AuditEntry {
	e := joined(ctx, &nodev1.JoinRequest{Token: request.GetToken(), NodeName: request.GetName()}, err)
	e.Verb, e.Method, e.Resource = "join", nodev1.Join_JoinServer_FullMethodName, "servers"
	e.Annotations = map[string]string{"rik.dev/peer": request.GetPeer()}
	return e
}

func (s *Server) joinServer(ctx context.Context, request *nodev1.JoinServerRequest) (*nodev1.JoinServerResponse, error) {
	if s.cfg.Servers == nil {
		return nil, status.Error(codes.Unimplemented, "no server can join this one")
	}
	from := remoteHost(ctx)
	if !s.failures.allowed(from) && !s.cfg.Tokens.Plausible(ctx, request.GetToken()) {
		return nil, status.Error(codes.ResourceExhausted, "too many refused join tokens from this address; try again in a minute")
	}
	if err := servers.CheckName(request.GetName()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.cfg.Tokens.UseServer(ctx, request.GetToken()); err != nil {
		return nil, s.refuseToken(from, err, jointoken.RoleServer)
	}
	response, err := s.cfg.Servers.Join(ctx, request)
	switch {
	case errors.Is(err, servers.ErrTaken):
		return nil, status.Error(codes.AlreadyExists, err.Error())
	case err != nil:
		s.log.Error("a server cannot join", "server", request.GetName(), "from", from, "err", err)
		if _, known := status.FromError(err); known {
			return nil, err
		}
		return nil, status.Error(codes.Unavailable, "the server cannot join at the moment; the log of the server that it asked says why")
	}
	s.log.Info("server joined", "server", request.GetName(), "from", from)
	return response, nil
}

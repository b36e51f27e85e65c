package nodeapi

import (
	"context"
	"net/http"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
)

// UserOfToken is the prefix before a join token's ID that forms the user of a join in the audit
// log.
const UserOfToken = "rik:join-token:"

// groupOfTokens is the group of those users.
const groupOfTokens = "rik:join-tokens"

// AuditEntry records who requested a node's certificate, and the result.
type AuditEntry struct {
	// Resource is what Node names. Empty means nodes.
	Resource string
	// Verb is "join" or "renew". Method is the full name of the call.
	Verb, Method string
	// User is the node, or the join token by its ID. It is empty if the token was refused.
	User   string
	Groups []string
	// Node is the requested name. From is the caller's address.
	Node, From string
	// Code is the corresponding HTTP status code. Message is the reason of a refusal.
	Code    int32
	Message string
	// Annotations are additional facts.
	Annotations map[string]string
}

func joined(ctx context.Context, request *nodev1.JoinRequest, err error) AuditEntry {
	e := AuditEntry{
		Verb: "join", Method: nodev1.Join_Join_FullMethodName, Node: request.GetNodeName(), From: remoteHost(ctx),
		Annotations: map[string]string{AnnotationMachine: request.GetMachineId()},
	}
	// The ID of a refused token may be false.
	if token, malformed := jointoken.Parse(request.GetToken()); malformed == nil && httpCode(err) != http.StatusUnauthorized {
		e.User, e.Groups = UserOfToken+token.ID, []string{groupOfTokens}
	}
	return e
}

func renewed(ctx context.Context, caller identity) AuditEntry {
	return AuditEntry{
		Verb: "renew", Method: nodev1.Node_Renew_FullMethodName, Node: caller.name, From: remoteHost(ctx),
		User: rikv1alpha1.NodeUserPrefix + caller.name, Groups: []string{rikv1alpha1.GroupNodes},
	}
}

func (s *Server) audit(e AuditEntry, err error) {
	if s.cfg.Audit == nil {
		return
	}
	e.Code = httpCode(err)
	if err != nil {
		e.Message = status.Convert(err).Message()
	}
	s.cfg.Audit(e)
}

// httpCode translates the errors of joining and renewing to HTTP status codes.
func httpCode(err error) int32 {
	switch status.Code(err) {
	case codes.OK:
		return http.StatusOK
	case codes.InvalidArgument:
		return http.StatusBadRequest
	// Too many refused tokens of an address (ResourceExhausted) matter only for an invalid token.
	case codes.Unauthenticated, codes.ResourceExhausted:
		return http.StatusUnauthorized
	case codes.PermissionDenied, codes.FailedPrecondition: // the latter until an operator confirms
		return http.StatusForbidden
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	default:
		return http.StatusServiceUnavailable
	}
}

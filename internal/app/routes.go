package app

import (
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/controller"
	"rik.dev/rik/internal/controller/jointoken"
	"rik.dev/rik/internal/controller/servers"
	wire "rik.dev/rik/internal/rpc/jointoken"
	wireservers "rik.dev/rik/internal/rpc/servers"
	"rik.dev/rik/internal/rpc/usage"
)

// routes are the paths of the control plane next to the API: the published API, explanations,
// metrics, join tokens and servers. Explanations and metrics require permission to read the objects that
// they describe.
type routes struct{ why, metrics, tokens, servers apiserver.LateHandler }

func (r *routes) list(s *apiserver.Server) ([]apiserver.Route, error) {
	published, err := restv0.Routes(s)
	if err != nil {
		return nil, err
	}
	return append(published, []apiserver.Route{
		{Path: controller.WhyPath, Handler: apiserver.Authorized(s.Authorizer(), controller.WhyPermission, &r.why)},
		{Path: usage.Path, Handler: apiserver.Authorized(s.Authorizer(), controller.MetricsPermission, &r.metrics)},
		{Path: wire.Path, Handler: apiserver.Authorized(s.Authorizer(), jointoken.Permission, &r.tokens)},
		{Path: wireservers.Path, Handler: apiserver.Authorized(s.Authorizer(), servers.Permission, &r.servers)},
	}...), nil
}

package access

import (
	"context"
	"encoding/json"
	"fmt"

	"rik.dev/rik/internal/rpc/jointoken"
)

// CreateToken creates a join token for a role.
func (f *Factory) CreateToken(ctx context.Context, request jointoken.Request, role jointoken.Role) (jointoken.Created, error) {
	var made jointoken.Created
	body, err := json.Marshal(request)
	if err != nil {
		return made, err
	}
	c, _, err := f.RESTClient()
	if err != nil {
		return made, err
	}
	post := c.Post().AbsPath(jointoken.Path).Body(body).SetHeader("Content-Type", "application/json")
	if role != jointoken.RoleNode {
		post.Param(jointoken.RoleParameter, string(role))
	}
	data, err := post.DoRaw(ctx)
	if err != nil {
		return made, fmt.Errorf("creating a join token: %w", err)
	}
	if err := json.Unmarshal(data, &made); err != nil {
		return made, fmt.Errorf("reading the new join token: %w", err)
	}
	return made, nil
}

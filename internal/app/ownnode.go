package app

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/controller/jointoken"
	"rik.dev/rik/internal/pause"
)

const (
	// ownTokenLife is the lifetime of the token with which the node of a server joins.
	ownTokenLife = 10 * time.Minute
	// ownTokenRetry is the pause after a failed attempt to create it.
	ownTokenRetry = time.Second
)

// runNode runs the node of this server. The node of a single server is connected inside this process.
// That of one of several connects as every other node does, since another server may be the active
// one. When the first other server joins, the node connects again; its instances continue to run.
func (p *plane) runNode(ctx context.Context, options node.Options, inside node.Connections) error {
	if !p.hasOthers(ctx) {
		alone, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(p.severalContext, func() { cancel(errSeveral) })
		err := node.Run(alone, options, inside, p.log)
		stop()
		several := errors.Is(context.Cause(alone), errSeveral)
		cancel(nil)
		if !several || ctx.Err() != nil {
			return err
		}
		if err != nil {
			p.log.Warn("ending the node's connections inside the server", "err", err)
		}
	}
	return p.runNodeOutside(ctx, options)
}

// hasOthers reports whether the cluster has other servers.
func (p *plane) hasOthers(ctx context.Context) bool {
	if embedded := p.api.Embedded(); embedded != nil {
		return embedded.IsSeveral()
	}
	if !p.settings.datastoreConfig().Shared() {
		return false
	}
	all, err := p.roster.All(ctx)
	if err != nil {
		p.log.Warn("reading the list of servers failed", "err", err)
	}
	return len(all) > 1
}

// errSeveral ends the connections of the node inside the process.
var errSeveral = errors.New("this is one of several servers now")

func (p *plane) runNodeOutside(ctx context.Context, options node.Options) error {
	own, err := p.own()
	if err != nil {
		return err
	}
	token, err := p.tokens.Create(ctx, jointoken.Options{Life: ownTokenLife, Description: "the node of server " + own.Name})
	for err != nil {
		p.log.Warn("creating a token for this server's own node failed; trying again", "err", err)
		if !pause.For(ctx, ownTokenRetry) {
			return nil
		}
		token, err = p.tokens.Create(ctx, jointoken.Options{Life: ownTokenLife, Description: "the node of server " + own.Name})
	}
	revoke := time.AfterFunc(ownTokenLife, func() { p.revoke(context.WithoutCancel(ctx), token.ID) })
	defer func() {
		if revoke.Stop() {
			p.revoke(context.WithoutCancel(ctx), token.ID)
		}
	}()
	host, err := p.settings.advertised()
	if err != nil {
		return err
	}
	return node.Run(ctx, options, node.Connections{
		SchedulerAddress:  net.JoinHostPort(host, strconv.Itoa(p.settings.WorkerPort)),
		ControllerAddress: net.JoinHostPort(host, strconv.Itoa(p.settings.NodePort)),
		Token:             token,
	}, p.log)
}

// revoke deletes the token, so that the list of tokens does not grow.
func (p *plane) revoke(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, ownTokenRetry)
	defer cancel()
	if err := p.tokens.Delete(ctx, id); err != nil {
		p.log.Debug("revoking the token of this server's own node failed; it expires by itself", "err", err)
	}
}

package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/apiserver/datastore/members"
	"rik.dev/rik/internal/apiserver/userconfig"
	"rik.dev/rik/internal/controller/servers"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rpc/nodev1"
	wire "rik.dev/rik/internal/rpc/servers"
	"rik.dev/rik/internal/version"
)

// registerPause is the pause between two attempts of a server to write its own entry.
const registerPause = time.Second

// datastoreConfig is the part of the datastore's configuration that says which kind it is.
func (c ControlPlane) datastoreConfig() datastore.Config {
	return datastore.Config{Endpoint: c.DatastoreEndpoint}
}

// advertised returns the address at which other machines reach this one.
func (c ControlPlane) advertised() (string, error) {
	ip, err := apiserver.Config{AdvertiseAddress: c.AdvertiseAddress, BindAddress: c.BindAddress}.Advertised()
	if err != nil {
		return "", err
	}
	return ip.String(), nil
}

// peerAddress returns the host and port at which other servers reach this one.
func (c ControlPlane) peerAddress() (string, error) {
	host, port := c.PeerAddress, strconv.Itoa(rikv1alpha1.PortPeers)
	if h, p, err := net.SplitHostPort(host); err == nil {
		host, port = h, p
	}
	if host == "" {
		address, err := c.advertised()
		if err != nil {
			return "", err
		}
		host = address
	}
	return net.JoinHostPort(host, port), nil
}

// severalSettings returns nil if no other server can join the datastore itself.
func (p *plane) severalSettings() (*etcd.Several, error) {
	if p.settings.DatastoreEndpoint != "" {
		return nil, nil //nolint:nilnil // documented
	}
	address, err := p.settings.peerAddress()
	if err != nil {
		return nil, err
	}
	return &etcd.Several{
		Server: p.settings.ServerName, Authority: p.authority, Bind: p.settings.BindAddress, Address: address, Join: p.settings.Peers,
		Only: p.settings.OnlyServer,
	}, nil
}

// own returns the entry of this server.
func (p *plane) own() (wire.Server, error) {
	host, err := p.settings.advertised()
	if err != nil {
		return wire.Server{}, err
	}
	api, err := p.api.AdvertisedURL()
	if err != nil {
		return wire.Server{}, err
	}
	s := wire.Server{
		Name: p.settings.ServerName, API: api,
		Nodes:    net.JoinHostPort(host, strconv.Itoa(p.settings.NodePort)),
		Workers:  net.JoinHostPort(host, strconv.Itoa(p.settings.WorkerPort)),
		Identity: p.identity, Version: version.Version,
	}
	if embedded := p.api.Embedded(); embedded != nil {
		s.Peer, s.Member = embedded.Peer(), strconv.FormatUint(embedded.Member(), 16)
	}
	return s, nil
}

func (p *plane) register(ctx context.Context) error {
	own, err := p.own()
	if err != nil {
		return err
	}
	return p.roster.Register(ctx, own)
}

// removeOthers removes the other servers from the list, because their members are removed.
func (p *plane) removeOthers(ctx context.Context) error {
	all, err := p.roster.All(ctx)
	if err != nil {
		return err
	}
	for _, s := range all {
		if s.Name == p.settings.ServerName {
			continue
		}
		p.log.Warn("removing a server that is lost", "server", s.Name)
		if _, err := p.roster.Remove(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// isSeveral reports whether this is one of several servers.
func (p *plane) isSeveral() bool {
	if embedded := p.api.Embedded(); embedded != nil {
		return embedded.IsSeveral()
	}
	return p.settings.datastoreConfig().Shared()
}

// keepServers runs this server's part in the list of servers.
func (p *plane) keepServers(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.roster.Run(ctx) })
	group.Go(func() error {
		p.roster.Watch(ctx, p.writeServers)
		return nil
	})
	group.Go(func() error {
		for p.isSeveral() {
			err := p.register(ctx)
			if err == nil && p.settings.OnlyServer {
				err = p.removeOthers(ctx)
			}
			if err == nil || ctx.Err() != nil {
				return nil //nolint:nilerr // it was told to end
			}
			p.log.Warn("writing this server into the list of servers failed; trying again", "err", err)
			if !pause.For(ctx, registerPause) {
				return nil
			}
		}
		return nil
	})
	if embedded := p.api.Embedded(); embedded != nil {
		group.Go(func() error { return embedded.KeepMembers(ctx, memberRoster{p.roster}) })
	}
	return group.Wait()
}

// writeServers writes the list into the configuration of this server's administrator.
func (p *plane) writeServers(list []wire.Server) {
	urls := make([]apiserver.NamedURL, 0, len(list))
	for _, s := range list {
		urls = append(urls, apiserver.NamedURL{Name: s.Name, URL: s.API})
	}
	if err := p.api.SetServers(urls); err != nil {
		p.log.Error("writing the list of servers into the administrator's configuration failed", "err", err)
		return
	}
	userconfig.Share(filepath.Join(p.settings.DataDir, apiserver.RIKConfigFile), p.log)
}

// memberRoster is the list of servers for the embedded etcd.
type memberRoster struct{ roster *servers.Roster }

// Entries implements etcd.Roster.
func (m memberRoster) Entries(ctx context.Context) ([]etcd.Entry, error) {
	all, err := m.roster.All(ctx)
	if err != nil {
		return nil, err
	}
	entries := make([]etcd.Entry, 0, len(all))
	for _, s := range all {
		e := etcd.Entry{Server: s.Name, Peer: s.Peer, Removed: s.Removed != nil}
		if s.Member != "" {
			if e.Member, err = strconv.ParseUint(s.Member, 16, 64); err != nil {
				return nil, fmt.Errorf("the member of server %s: %w", s.Name, err)
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Removed implements etcd.Roster.
func (m memberRoster) Removed(ctx context.Context, server string) error {
	return m.roster.Forget(ctx, server)
}

// Waiting implements etcd.Roster.
func (m memberRoster) Waiting(waiting []members.Waiting) {
	reasons := map[string]string{}
	for _, w := range waiting {
		reasons[w.Server] = w.Reason
	}
	m.roster.SetWaiting(reasons)
}

// joining is the plane as nodeapi.Servers.
type joining struct{ *plane }

// Follow implements nodeapi.Servers.
func (j joining) Follow(ctx context.Context, send func(*nodev1.Servers) error) error {
	return j.roster.Follow(ctx, send)
}

// Join implements nodeapi.Servers.
func (j joining) Join(ctx context.Context, request *nodev1.JoinServerRequest) (*nodev1.JoinServerResponse, error) {
	embedded := j.api.Embedded()
	switch {
	case embedded == nil && !j.settings.datastoreConfig().Shared():
		return nil, status.Error(codes.FailedPrecondition, "the datastore of this cluster is a file of its server, which other servers cannot use: use the embedded etcd, or an external datastore")
	case embedded == nil && request.GetPeer() != "":
		return nil, status.Error(codes.FailedPrecondition, "this cluster has an external datastore: start the server with the same --datastore-endpoint as the others")
	case embedded != nil && request.GetPeer() == "":
		return nil, status.Error(codes.FailedPrecondition, "this cluster has an embedded etcd: start the server without --datastore-endpoint")
	}
	if embedded != nil {
		if err := embedded.OpenToOthers(ctx); err != nil {
			return nil, err
		}
	}
	if err := j.register(ctx); err != nil {
		return nil, err
	}
	if embedded != nil {
		// Before the other server can run a controller.
		j.controller.Elect()
	}
	j.becomeSeveral()
	err := j.roster.Join(ctx, wire.Server{
		Name: request.GetName(), Peer: request.GetPeer(), Version: request.GetVersion(),
		API: request.GetApi(), Nodes: request.GetNodes(), Workers: request.GetWorkers(),
	})
	if err != nil {
		return nil, err
	}
	response := &nodev1.JoinServerResponse{Files: map[string][]byte{}, Settings: j.settings.Shared}
	for _, name := range apiserver.Shared() {
		if response.Files[name], err = os.ReadFile(filepath.Join(j.settings.DataDir, name)); err != nil {
			return nil, fmt.Errorf("reading what servers share: %w", err)
		}
	}
	if embedded != nil {
		response.Peers = embedded.PeerURLs()
	}
	return response, nil
}

// probe reports whether the API at a URL is ready.
func (p *plane) probe(config *tls.Config) func(context.Context, string) error {
	config = config.Clone()
	config.ServerName, config.NextProtos = "", nil // the transport uses the host of the URL
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true, Proxy: nil}}
	return func(ctx context.Context, api string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/readyz", http.NoBody)
		if err != nil {
			return err
		}
		answer, err := c.Do(request)
		if err != nil {
			var wrapped *url.Error
			if errors.As(err, &wrapped) {
				err = wrapped.Err
			}
			return fmt.Errorf("its API does not answer: %w", err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			body, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10)) // only for the message
			return fmt.Errorf("its API is not ready: %s %s", answer.Status, strings.Join(failing(string(body)), ", "))
		}
		return nil
	}
}

// failing returns the failing checks in a response of /readyz.
func failing(body string) []string {
	var checks []string
	for line := range strings.Lines(body) {
		if check, ok := strings.CutPrefix(line, "[-]"); ok {
			checks = append(checks, strings.TrimSpace(check))
		}
	}
	return checks
}

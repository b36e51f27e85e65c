// Package peer is the port at which the servers of a cluster reach each other's embedded etcd. It
// accepts only certificates of the cluster's servers. Next to etcd's own paths it serves Path,
// which reports the state of the member: a leader reads it before it changes the members, and a
// server before it starts.
package peer

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/rafthttp"
)

// Path is the path of the state.
const Path = "/rik/member"

const (
	// askTimeout bounds one request for the state.
	askTimeout = 2 * time.Second
	// maxAnswer bounds the answer.
	maxAnswer = 1 << 20
	// headerTimeout bounds the wait for the header of a request.
	headerTimeout = 10 * time.Second
)

// State is the state of a member.
type State struct {
	// Server is the name of the server.
	Server string `json:"server"`
	// Member is the ID of the member. It is 0 if its etcd does not run yet.
	Member uint64 `json:"member,omitempty"`
	// Applied is the index of the last log entry that it has applied.
	Applied uint64 `json:"applied,omitempty"`
	// Removed reports whether the member in the request was removed from the cluster.
	Removed bool `json:"removed,omitempty"`
	// Members are the members that it knows.
	Members []Member `json:"members,omitempty"`
}

// Member is a member of the cluster.
type Member struct {
	ID      uint64   `json:"id"`
	Name    string   `json:"name,omitempty"`
	Peers   []string `json:"peers"`
	Learner bool     `json:"learner,omitempty"`
}

// Source is a running etcd.
type Source struct {
	// Etcd serves the paths of etcd.
	Etcd http.Handler
	// State returns the state of the member.
	State func(member uint64) State
}

// Port is the open port of a server.
type Port struct {
	listener net.Listener
	server   *http.Server
	source   atomic.Pointer[Source]
	name     string
}

// Listen opens the port. Until Serve is called it only reports that etcd does not run yet.
func Listen(address, server string, config *tls.Config, log *slog.Logger) (*Port, error) {
	// etcd finds lost connections by timeouts, since its streams send something every few seconds.
	inner, err := transport.NewTimeoutListener(address, "http", nil, rafthttp.ConnReadTimeout, rafthttp.ConnWriteTimeout)
	if err != nil {
		return nil, fmt.Errorf("opening the port for other servers: %w", err)
	}
	config = config.Clone()
	config.NextProtos = []string{"http/1.1"} // etcd's streams take over their connections
	p := &Port{listener: tls.NewListener(inner, config), name: server}
	p.server = &http.Server{
		Handler: http.HandlerFunc(p.serve), ReadHeaderTimeout: headerTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() { _ = p.server.Serve(p.listener) }() // it ends with Close
	return p, nil
}

// Address is the address of the port.
func (p *Port) Address() net.Addr { return p.listener.Addr() }

// Serve begins to serve an etcd.
func (p *Port) Serve(s Source) { p.source.Store(&s) }

// Close closes the port and all its connections.
func (p *Port) Close() error {
	if err := p.server.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("closing the port for other servers: %w", err)
	}
	return nil
}

func (p *Port) serve(w http.ResponseWriter, r *http.Request) {
	source := p.source.Load()
	if r.URL.Path != Path {
		if source == nil {
			http.Error(w, "etcd does not run yet", http.StatusServiceUnavailable)
			return
		}
		source.Etcd.ServeHTTP(w, r)
		return
	}
	state := State{}
	if source != nil {
		member, _ := strconv.ParseUint(r.URL.Query().Get("member"), 10, 64) // 0: no member is asked for
		state = source.State(member)
	}
	state.Server = p.name
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state) // the client has disconnected
}

// Client asks other servers for their state.
type Client struct{ http *http.Client }

// NewClient returns a client with the certificate of this server.
func NewClient(config *tls.Config) *Client {
	return &Client{&http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, Proxy: nil}}}
}

// Ask returns the state of the server at a peer URL. member is an ID whose removal is asked for, or
// 0.
func (c *Client) Ask(ctx context.Context, peer string, member uint64) (State, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, fmt.Errorf("no answer in %s", askTimeout))
	defer cancel()
	target := peer + Path + "?" + url.Values{"member": {strconv.FormatUint(member, 10)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return State{}, fmt.Errorf("asking the server at %s: %w", peer, err)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return State{}, fmt.Errorf("asking the server at %s: %w", peer, cmp.Or(context.Cause(ctx), err))
	}
	defer answer.Body.Close()
	var state State
	if answer.StatusCode != http.StatusOK {
		return State{}, fmt.Errorf("the server at %s answered %s", peer, answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxAnswer)).Decode(&state); err != nil {
		return State{}, fmt.Errorf("reading the answer of the server at %s: %w", peer, err)
	}
	return state, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

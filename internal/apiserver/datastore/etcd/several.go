package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"

	"rik.dev/rik/internal/apiserver/datastore/etcd/peer"
	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/pki"
)

const (
	// severalTickMillis and severalElectionMillis are for members on a network: etcd's defaults.
	// After the loss of the leader, writes wait for one to two times the latter.
	severalTickMillis     = 100
	severalElectionMillis = 1000
	// severalFile is the file with the record of a server that is one of several.
	severalFile = "member.json"
	// removedSuffix is added to the directory of a removed member when its server joins again.
	removedSuffix = ".removed"
	// joinPause is the pause between two checks of a server that joins.
	joinPause = 200 * time.Millisecond
	// joinLogged is the interval of log messages meanwhile.
	joinLogged = 15 * time.Second
)

// ErrRemoved means that this server was removed from its cluster.
var ErrRemoved = errors.New("this server was removed from its cluster")

// Several configures a server that may be one of several.
type Several struct {
	// Server is the name of this server. Required.
	Server string
	// Authority signs the certificates of the servers. Required.
	Authority *pki.Authority
	// Bind is the IP address to listen on. Empty means all.
	Bind string
	// Address is the host and port at which other servers reach this one. Required.
	Address string
	// Hosts are further names and addresses of this server.
	Hosts []string
	// Validity is the validity of the certificate. Zero means the default.
	Validity time.Duration
	// Join has the peer URLs of the cluster that this server joins. It is empty for the first
	// server, and ignored if this server is a member already.
	Join []string
	// Only makes this server continue as the only member, because the majority of the members is lost.
	// The others are removed, and cannot return with their data. An administrator sets it for one
	// start.
	Only bool
}

// URL is the peer URL of the server.
func (s *Several) URL() string { return (&url.URL{Scheme: "https", Host: s.Address}).String() }

// record is what a server that is one of several keeps about its membership.
type record struct {
	Server string `json:"server"`
	Member uint64 `json:"member,omitempty"`
	// Peers are the peer URLs of the other members, as last seen.
	Peers   []string `json:"peers,omitempty"`
	Removed bool     `json:"removed,omitempty"`
	// Joining is set until the server has joined.
	Joining bool `json:"joining,omitempty"`
}

func readRecord(dir string) (*record, error) {
	data, err := os.ReadFile(filepath.Join(dir, severalFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // a single server has none
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of the membership: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s is damaged: restore it from a backup: %w", filepath.Join(dir, severalFile), err)
	}
	return r, nil
}

func (r *record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the record of the membership: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, severalFile), append(data, '\n'))
}

// Membership is what the datastore directory of a stopped server says about its membership.
type Membership int

const (
	// NoMember means that no etcd has run here.
	NoMember Membership = iota
	// OnlyMember means that the server has its own cluster, without other servers.
	OnlyMember
	// OneOfSeveral means that the server is a member of a cluster of several.
	OneOfSeveral
	// Removed means that the server was removed from a cluster of several.
	Removed
)

// MembershipOf reads the membership from a datastore directory.
func MembershipOf(dir string) (Membership, error) {
	r, err := readRecord(dir)
	switch {
	case err != nil:
		return NoMember, err
	case r != nil && r.Removed:
		return Removed, nil
	case !hasData(dir):
		return NoMember, nil
	case r != nil:
		return OneOfSeveral, nil
	}
	return OnlyMember, nil
}

// cluster is this server's part in a cluster of several.
type cluster struct {
	dir    string
	cfg    Several
	log    *slog.Logger
	peer   *pki.Peer
	client *peer.Client
	// record is nil while the server is alone.
	record *record
	port   *peer.Port
	stop   context.CancelFunc // of the renewal
}

// openCluster prepares the certificates, and opens the port if this server is one of several.
func openCluster(ctx context.Context, dir string, cfg Several, log *slog.Logger) (*cluster, error) {
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("the address for other servers: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the datastore's directory: %w", err)
	}
	c := &cluster{dir: dir, cfg: cfg, log: log}
	if c.record, err = readRecord(dir); err != nil {
		return nil, err
	}
	c.peer, err = cfg.Authority.Peer(ctx, pki.PeerConfig{
		Dir: dir, Server: cfg.Server, Hosts: append([]string{host}, cfg.Hosts...), Validity: cfg.Validity, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	renewing, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.stop = stop
	go func() { _ = c.peer.Run(renewing) }() // it ends with stop
	c.client = peer.NewClient(c.peer.ClientTLS())
	if c.record != nil || c.joins() {
		err = c.begin(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// begin checks that this server was not removed, and opens the port.
func (c *cluster) begin(ctx context.Context) error {
	if c.record != nil && !c.record.Removed && !c.cfg.Only && c.wasRemoved(ctx) {
		c.record.Removed = true
		if err := c.record.write(c.dir); err != nil {
			return err
		}
	}
	if c.record != nil && c.record.Removed {
		if len(c.cfg.Join) == 0 {
			return c.removedError()
		}
		if err := c.moveAway(); err != nil {
			return err
		}
	}
	switch {
	case c.joins():
		// A later start without --join must not begin a cluster of its own.
		if err := (&record{Server: c.cfg.Server, Joining: true}).write(c.dir); err != nil {
			return err
		}
	case c.record.Joining && !hasData(c.dir):
		return fmt.Errorf("%w: start it again with --join and --token-file", ErrNotJoined)
	}
	return c.listen()
}

func (c *cluster) removedError() error {
	return fmt.Errorf("%w: server %s. Its data in %s is not used any more. Next: to add it again, run \"rikctl token create --server\" on another server, and start this one with --join https://OTHER:5000 --token-file FILE. It then copies the data from the other servers",
		ErrRemoved, c.record.Server, filepath.Join(c.dir, "etcd"))
}

// RemovedError returns the error of a server that was removed, for a datastore directory.
func RemovedError(dir, server string) error {
	return (&cluster{dir: dir, record: &record{Server: server}}).removedError()
}

// CheckRemoved asks the other servers whether the member in a datastore directory was removed, and
// records it. No etcd may run on the directory.
func CheckRemoved(ctx context.Context, dir string, cfg Several, log *slog.Logger) (bool, error) {
	c := &cluster{dir: dir, cfg: cfg, log: log}
	var err error
	if c.record, err = readRecord(dir); err != nil || c.record == nil || c.record.Removed {
		return c.record != nil && c.record.Removed, err
	}
	if c.peer, err = cfg.Authority.Peer(ctx, pki.PeerConfig{Dir: dir, Server: cfg.Server, Hosts: []string{"localhost"}, Logger: log}); err != nil {
		return false, err
	}
	c.client = peer.NewClient(c.peer.ClientTLS())
	defer c.client.Close()
	if c.record.Removed = c.wasRemoved(ctx); !c.record.Removed {
		return false, nil
	}
	return true, c.record.write(dir)
}

// moveAway keeps the data of a removed member once, for people. A removed member never returns: the
// cluster does not accept its ID any more.
func (c *cluster) moveAway() error {
	from := filepath.Join(c.dir, "etcd")
	if err := os.RemoveAll(from + removedSuffix); err != nil {
		return fmt.Errorf("removing old data of a removed member: %w", err)
	}
	if err := os.Rename(from, from+removedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("moving the data of a removed member away: %w", err)
	}
	if err := os.Remove(filepath.Join(c.dir, severalFile)); err != nil {
		return fmt.Errorf("removing the record of a removed member: %w", err)
	}
	c.record = nil
	return nil
}

// wasRemoved asks the other servers whether this member was removed.
func (c *cluster) wasRemoved(ctx context.Context) bool {
	if c.record.Member == 0 {
		return false
	}
	for _, url := range c.record.Peers {
		state, err := c.client.Ask(ctx, url, c.record.Member)
		if err == nil && state.Removed {
			return true
		}
	}
	return false
}

// hasData reports whether the member has started before.
func hasData(dir string) bool {
	names, err := filepath.Glob(filepath.Join(dir, "etcd", "member", "wal", "*.wal"))
	return err == nil && len(names) > 0
}

func (c *cluster) joins() bool { return len(c.cfg.Join) > 0 && !hasData(c.dir) }

// ErrNotJoined means that a server has begun to join others, and has not finished.
var ErrNotJoined = errors.New("this server has not joined its cluster yet")

func (c *cluster) listen() error {
	if c.port != nil {
		return nil
	}
	_, port, err := net.SplitHostPort(c.cfg.Address)
	if err != nil {
		return fmt.Errorf("the address for other servers: %w", err)
	}
	c.port, err = peer.Listen(net.JoinHostPort(c.cfg.Bind, port), c.cfg.Server, c.peer.ServerTLS(), c.log)
	if err != nil {
		return fmt.Errorf("%w; next: choose another address with --peer-address", err)
	}
	return nil
}

// configure changes the configuration of etcd. A single server keeps its own timing.
func (c *cluster) configure(ctx context.Context, ec *embed.Config) error {
	ec.PeerTLSInfo.CertFile, ec.PeerTLSInfo.KeyFile, ec.PeerTLSInfo.TrustedCAFile = c.peer.CertFile, c.peer.KeyFile, c.peer.CAFile
	ec.PeerTLSInfo.ClientCertAuth = true
	if c.port == nil {
		return nil
	}
	own, err := url.Parse(c.cfg.URL())
	if err != nil {
		return fmt.Errorf("the address for other servers: %w", err)
	}
	ec.TickMs, ec.ElectionMs = severalTickMillis, severalElectionMillis
	ec.Name = c.cfg.Server
	ec.AdvertisePeerUrls = []url.URL{*own}
	ec.InitialCluster = ec.InitialClusterFromName(ec.Name)
	if !c.joins() {
		// Without data there is nothing to continue with.
		ec.ForceNewCluster = c.cfg.Only && hasData(c.dir)
		return nil
	}
	ec.ClusterState = embed.ClusterStateFlagExisting
	ec.InitialCluster, err = c.awaitAdded(ctx)
	return err
}

// awaitAdded waits until the leader has added this server, and returns the members in etcd's form.
// The names of the others do not matter.
func (c *cluster) awaitAdded(ctx context.Context) (string, error) {
	logged := time.Now()
	for {
		var problems []error
		for _, url := range c.cfg.Join {
			state, err := c.client.Ask(ctx, url, 0)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if list := initialCluster(state.Members, c.cfg.Server, c.cfg.URL()); list != "" {
				return list, nil
			}
		}
		if time.Since(logged) >= joinLogged {
			logged = time.Now()
			c.log.Warn("waiting until the other servers add this one; \"rikctl server list\" there shows the reason", "peer", c.cfg.URL(), "err", errors.Join(problems...))
		}
		if !pause.For(ctx, joinPause) {
			return "", fmt.Errorf("waiting until the other servers add this one: %w", errors.Join(context.Cause(ctx), errors.Join(problems...)))
		}
	}
}

// initialCluster is empty if the server is not one of the members.
func initialCluster(members []peer.Member, server, own string) string {
	var parts []string
	found := false
	for _, m := range members {
		name := types.ID(m.ID).String()
		if slices.Contains(m.Peers, own) {
			name, found = server, true
		}
		for _, url := range m.Peers {
			parts = append(parts, name+"="+url)
		}
	}
	if !found {
		return ""
	}
	return strings.Join(parts, ",")
}

func (c *cluster) close() error {
	c.stop()
	c.client.Close()
	if c.port == nil {
		return nil
	}
	return c.port.Close()
}

// awaitPromoted waits until this member is not a learner. A learner answers no requests of the API
// server.
func (s *Server) awaitPromoted(ctx context.Context) error {
	logged := time.Now()
	for s.isLearner() {
		if time.Since(logged) >= joinLogged {
			logged = time.Now()
			s.cluster.log.Info("copying the datastore from the other servers", "applied", s.etcd.Server.AppliedIndex())
		}
		select {
		case <-s.etcd.Server.StopNotify():
			return errors.New("etcd stopped while it joined the other servers")
		default:
		}
		if !pause.For(ctx, joinPause) {
			return fmt.Errorf("copying the datastore from the other servers: %w", context.Cause(ctx))
		}
	}
	return nil
}

// isLearner is false for a member that was removed, for which etcd panics.
func (s *Server) isLearner() bool {
	return s.etcd.Server.IsMemberExist(s.etcd.Server.MemberID()) && s.etcd.Server.IsLearner()
}

// serve begins to serve the other members, and keeps the record.
func (c *cluster) serve(s *Server) error {
	c.port.Serve(peer.Source{Etcd: etcdhttp.NewPeerHandler(s.etcd.GetLogger(), s.etcd.Server), State: s.state})
	if c.record == nil {
		c.record = &record{Server: c.cfg.Server}
	}
	c.record.Server, c.record.Member = c.cfg.Server, uint64(s.etcd.Server.MemberID())
	c.record.Peers, c.record.Joining = nil, false
	for _, m := range s.state(0).Members {
		if m.ID != c.record.Member {
			c.record.Peers = append(c.record.Peers, m.Peers...)
		}
	}
	return c.record.write(c.dir)
}

// state is what this member tells other servers.
func (s *Server) state(asked uint64) peer.State {
	server := s.etcd.Server
	out := peer.State{
		Server: s.cluster.cfg.Server, Member: uint64(server.MemberID()), Applied: server.AppliedIndex(),
		Removed: asked != 0 && server.IsIDRemoved(asked),
	}
	for _, m := range server.Cluster().Members() {
		out.Members = append(out.Members, peer.Member{ID: uint64(m.ID), Name: m.Name, Peers: m.PeerURLs, Learner: m.IsLearner})
	}
	slices.SortFunc(out.Members, func(a, b peer.Member) int { return strings.Compare(types.ID(a.ID).String(), types.ID(b.ID).String()) })
	return out
}

// ErrAlone is returned by a server that cannot be one of several.
var ErrAlone = errors.New("this server's datastore cannot be shared with other servers")

// OpenToOthers opens the port for other servers and announces it to the members. A single server
// does this when the first other server joins. It may be called again.
func (s *Server) OpenToOthers(ctx context.Context) error {
	if s.cluster == nil {
		return ErrAlone
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.cluster.port == nil {
		if err := s.cluster.listen(); err != nil {
			return err
		}
	}
	if err := s.announce(ctx); err != nil {
		return err
	}
	return s.cluster.serve(s)
}

// announce makes the members use the present URL of this one.
func (s *Server) announce(ctx context.Context) error {
	own, member := s.cluster.cfg.URL(), uint64(s.etcd.Server.MemberID())
	for _, m := range s.state(0).Members {
		if m.ID == member && slices.Equal(m.Peers, []string{own}) {
			return nil
		}
	}
	if _, err := s.space.client.MemberUpdate(ctx, member, []string{own}); err != nil {
		return fmt.Errorf("announcing the address for other servers: %w", err)
	}
	return nil
}

// IsSeveral reports whether this server is one of several: it has opened its port for others.
func (s *Server) IsSeveral() bool {
	if s.cluster == nil {
		return false
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	return s.cluster.port != nil
}

// Member is the ID of this server's member.
func (s *Server) Member() uint64 { return uint64(s.etcd.Server.MemberID()) }

// PeerURLs returns the peer URLs of all members.
func (s *Server) PeerURLs() []string {
	var urls []string
	for _, m := range s.state(0).Members {
		urls = append(urls, m.Peers...)
	}
	return urls
}

// Peer is the URL of this server for other servers.
func (s *Server) Peer() string {
	if s.cluster == nil {
		return ""
	}
	return s.cluster.cfg.URL()
}

// IsLeader reports whether this member is the leader.
func (s *Server) IsLeader() bool { return s.etcd.Server.Leader() == s.etcd.Server.MemberID() }

// watch delivers the reason if etcd ends by itself.
func (s *Server) watch() {
	select {
	case err := <-s.etcd.Err():
		s.failed <- err
	case <-s.etcd.Server.StopNotify():
		if !s.closing.Load() {
			s.failed <- s.stoppedBecause()
		}
	case <-s.ended:
	}
}

// stoppedBecause returns why etcd has stopped by itself.
func (s *Server) stoppedBecause() error {
	s.opening.Lock()
	defer s.opening.Unlock()
	c := s.cluster
	if c == nil || c.record == nil {
		return errors.New("embedded etcd stopped")
	}
	ctx, cancel := context.WithTimeout(context.Background(), joinLogged)
	defer cancel()
	if s.etcd.Server.IsIDRemoved(c.record.Member) || c.wasRemoved(ctx) {
		c.record.Removed = true
		return errors.Join(c.removedError(), c.record.write(c.dir))
	}
	return errors.New("embedded etcd stopped")
}

// removedOr returns the reason of a failed start, which may be that this server was removed.
func (s *Server) removedOr(ctx context.Context, err error) error {
	c := s.cluster
	if c == nil || c.record == nil || ctx.Err() != nil {
		return err
	}
	if !s.etcd.Server.IsIDRemoved(c.record.Member) && !c.wasRemoved(ctx) {
		return err
	}
	c.record.Removed = true
	return errors.Join(c.removedError(), c.record.write(c.dir))
}

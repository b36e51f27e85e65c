package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/authority"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore/etcd"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/version"
)

const (
	// settingsFile has the settings that this server has received from the others.
	settingsFile = "shared-settings.json"
	// joinedFile has the ID of the token with which this server has joined.
	joinedFile = "joined-with-token"
	// joinCall bounds one request to join.
	joinCall = 30 * time.Second
	// joinRetry is the pause after a request that may succeed later.
	joinRetry = 2 * time.Second
)

// sharedFlags are the flags that all servers of a cluster must have in common.
var sharedFlags = []string{"cluster-cidr", "node-cidr-size", "service-cidr", "cluster-domain", "service-node-port-range", "cluster-name"}

// joinOptions are the flags with which a server joins others.
type joinOptions struct {
	// server is the address of a server of the cluster. It is empty for the first server.
	server, token, tokenFile string
	flags                    *pflag.FlagSet
}

func (f *flags) several(s *pflag.FlagSet) {
	f.join.flags = s
	f.join.token = os.Getenv(node.EnvJoinToken)
	s.StringVar(&f.join.server, "join", os.Getenv(node.EnvJoin), "join the cluster of another server, such as https://10.0.0.1:5000, as one of its servers; it is ignored once this server has joined [RIK_JOIN]")
	s.StringVar(&f.join.tokenFile, "token-file", "", "file with the token for --join, which \"rikctl token create --server\" creates; by default the token is in the environment [RIK_JOIN_TOKEN]")
	s.BoolVar(&f.control.OnlyServer, "only-server", false, "continue as the only server, because the majority of the servers is lost forever; the others must join again; use it for one start only")
	s.StringVar(&f.control.ServerName, "server-name", "", "name of this server among several; the host name by default")
	s.StringVar(&f.control.PeerAddress, "peer-address", "", "address at which other servers reach this one: an IP address or a host name, with an optional port (default --advertise-address, port 4998)")
}

// validateSeveral also sets the default of the name.
func (f *flags) validateSeveral() []error {
	var problems []error
	if f.control.ServerName == "" {
		if host, err := os.Hostname(); err == nil {
			f.control.ServerName = strings.ReplaceAll(strings.ToLower(host), "_", "-")
		}
	}
	if f.join.server != "" && f.join.tokenFile == "" && f.join.token == "" {
		problems = append(problems, errors.New("--join needs --token-file: create the token with \"rikctl token create --server\" on a server of the cluster"))
	}
	if _, _, err := join.Addresses(f.join.server); f.join.server != "" && err != nil {
		problems = append(problems, fmt.Errorf("--join: %w", err))
	}
	if _, p, err := net.SplitHostPort(f.control.PeerAddress); err == nil {
		if port, err := strconv.ParseUint(p, 10, 16); err != nil || port == 0 {
			problems = append(problems, fmt.Errorf("--peer-address %q: %q is not a port", f.control.PeerAddress, p))
		}
	}
	return problems
}

// joinCluster makes this server a part of the cluster of --join, unless it is one already. It then
// applies the settings that all servers share.
func (f *flags) joinCluster(ctx context.Context, log *slog.Logger) error {
	c := &f.control
	if f.join.server != "" {
		member, err := f.isMember(ctx, log)
		if err != nil {
			return err
		}
		if !member {
			if err := f.requestJoin(ctx, log); err != nil {
				return err
			}
		}
	}
	stored, err := readSettings(c.DataDir)
	if err != nil {
		return err
	}
	if err := f.applySettings(stored); err != nil {
		return err
	}
	c.Shared = f.sharedSettings()
	return nil
}

// isMember reports whether this server has joined. It refuses a data directory of another cluster.
//
// A server that was removed joins again only with another token than before. Otherwise its service,
// whose settings have the token, would add it again after a restart.
func (f *flags) isMember(ctx context.Context, log *slog.Logger) (bool, error) {
	dir := f.control.DataDir
	token, unreadable := f.joinToken() // a member may have no token any more
	used, err := os.ReadFile(filepath.Join(dir, joinedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("reading the token of the last join: %w", err)
	}
	again := unreadable != nil || strings.TrimSpace(string(used)) == token.ID
	foreign := fmt.Errorf("%s has the data of a cluster of its own, and --join makes this server a part of another one: move the directory away, or choose another one with --data-dir", dir)
	if f.control.DatastoreEndpoint != "" {
		known, err := clusterid.Read(dir)
		return known != nil, err
	}
	store := filepath.Join(dir, "datastore")
	membership, err := etcd.MembershipOf(store)
	if err == nil && membership == etcd.OneOfSeveral && !again {
		membership, err = f.checkRemoved(ctx, store, log)
	}
	switch {
	case err != nil:
		return false, err
	case membership == etcd.OnlyMember:
		return false, foreign
	case membership == etcd.OneOfSeveral:
		return true, nil
	case unreadable != nil:
		return false, unreadable
	case membership == etcd.Removed && again:
		return false, fmt.Errorf("%w; the token of --token-file is the one with which it joined before", etcd.RemovedError(store, f.control.ServerName))
	}
	return false, nil
}

// checkRemoved asks the other servers whether this one was removed while it did not run.
func (f *flags) checkRemoved(ctx context.Context, store string, log *slog.Logger) (etcd.Membership, error) {
	ca, err := authority.Open(f.control.DataDir, false)
	if err != nil {
		return etcd.NoMember, err
	}
	removed, err := etcd.CheckRemoved(ctx, store, etcd.Several{Server: f.control.ServerName, Authority: ca}, log)
	if removed {
		return etcd.Removed, err
	}
	return etcd.OneOfSeveral, err
}

// requestJoin gets what the servers share, and writes it into the data directory.
func (f *flags) requestJoin(ctx context.Context, log *slog.Logger) error {
	token, err := f.joinToken()
	if err != nil {
		return err
	}
	request, err := f.joinRequest(token)
	if err != nil {
		return err
	}
	var response *nodev1.JoinServerResponse
	for {
		response, err = f.callJoin(ctx, token, request)
		if err == nil {
			break
		}
		if final(err) {
			return err
		}
		log.Warn("joining the other servers failed; trying again", "server", f.join.server, "retryIn", joinRetry, "err", err)
		if !pause.For(ctx, joinRetry) {
			return err
		}
	}
	if err := f.checkSettings(response.GetSettings()); err != nil {
		return err
	}
	f.control.Peers = response.GetPeers()
	if err := f.saveJoin(response); err != nil {
		return err
	}
	return f.saveToken(token)
}

// saveToken saves the ID of the token, which is not secret.
func (f *flags) saveToken(token jointoken.Token) error {
	return atomicfile.Write(filepath.Join(f.control.DataDir, joinedFile), []byte(token.ID+"\n"))
}

func (f *flags) joinToken() (jointoken.Token, error) {
	if f.join.tokenFile == "" {
		return jointoken.Parse(f.join.token)
	}
	raw, err := os.ReadFile(f.join.tokenFile)
	if err != nil {
		return jointoken.Token{}, fmt.Errorf("reading the token of --token-file: %w", err)
	}
	return jointoken.Parse(string(raw))
}

func (f *flags) joinRequest(token jointoken.Token) (*nodev1.JoinServerRequest, error) {
	host, err := f.control.advertised()
	if err != nil {
		return nil, err
	}
	at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
	request := &nodev1.JoinServerRequest{
		Token: token.Text(), Name: f.control.ServerName, Version: version.Version,
		Api: "https://" + at(f.control.Port), Nodes: at(f.control.NodePort), Workers: at(f.scheduler.WorkerPort),
	}
	if f.control.DatastoreEndpoint == "" {
		address, err := f.control.peerAddress()
		if err != nil {
			return nil, err
		}
		request.Peer = (&etcd.Several{Address: address}).URL()
	}
	return request, nil
}

// callJoin sends the token only to a server of the token's cluster.
func (f *flags) callJoin(ctx context.Context, token jointoken.Token, request *nodev1.JoinServerRequest) (*nodev1.JoinServerResponse, error) {
	scheduler, _, err := join.Addresses(f.join.server)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(scheduler)
	if err != nil {
		return nil, err
	}
	pin := &pki.Pin{Hash: token.CAHash, ServerName: host}
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(host, strconv.Itoa(f.control.NodePort)),
		grpc.WithTransportCredentials(credentials.NewTLS(pin.Config())), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", f.join.server, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, joinCall)
	defer cancel()
	response, err := nodev1.NewJoinClient(conn).JoinServer(ctx, request)
	if err != nil {
		if refusal := pin.Refusal(); refusal != nil {
			err = refusal
		}
		return nil, fmt.Errorf("joining the cluster of %s: %w", f.join.server, err)
	}
	return response, nil
}

// final reports whether another attempt to join is useless.
func final(err error) bool {
	return errors.Is(err, pki.ErrNotTrusted) ||
		slices.Contains([]codes.Code{codes.Unauthenticated, codes.InvalidArgument, codes.PermissionDenied, codes.AlreadyExists, codes.FailedPrecondition, codes.Unimplemented}, status.Code(err))
}

// saveJoin writes the keys first, so that a directory with an identity has its keys.
func (f *flags) saveJoin(response *nodev1.JoinServerResponse) error {
	dir := f.control.DataDir
	known, err := clusterid.Read(dir)
	if err != nil {
		return err
	}
	var theirs clusterid.File
	if err := json.Unmarshal(response.GetFiles()[clusterid.FileName], &theirs); err != nil {
		return fmt.Errorf("reading the identity of the cluster of %s: %w", f.join.server, err)
	}
	if known != nil && known.ID != theirs.ID {
		return fmt.Errorf("%s belongs to the cluster %s, and %s to the cluster %s: move the directory away, or choose another one with --data-dir", dir, known.ID, f.join.server, theirs.ID)
	}
	allowed := apiserver.Shared()
	for _, name := range append(slices.DeleteFunc(slices.Clone(allowed), func(n string) bool { return n == clusterid.FileName }), clusterid.FileName) {
		content, found := response.GetFiles()[name]
		if !found {
			return fmt.Errorf("the server at %s did not send %s", f.join.server, name)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("creating the data directory: %w", err)
		}
		if err := atomicfile.Write(path, content); err != nil {
			return err
		}
	}
	settings, err := json.MarshalIndent(response.GetSettings(), "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, settingsFile), append(settings, '\n'))
}

func readSettings(dir string) (map[string]string, error) {
	path := filepath.Join(dir, settingsFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the settings of the cluster: %w", err)
	}
	var settings map[string]string
	if err := json.Unmarshal(data, &settings); err != nil {
		return nil, fmt.Errorf("%s is damaged: remove it, and set the flags %s as on the other servers: %w", path, strings.Join(sharedFlags, ", "), err)
	}
	return settings, nil
}

// checkSettings refuses flags that differ from those of the other servers.
func (f *flags) checkSettings(shared map[string]string) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		flag := f.sharedFlag(name)
		if flag != nil && flag.Changed && flag.Value.String() != shared[name] {
			problems = append(problems, fmt.Errorf("--%s is %q here and %q on the other servers: remove the flag", name, flag.Value, shared[name]))
		}
	}
	return errors.Join(problems...)
}

// applySettings uses the settings of the other servers, unless a flag is set.
func (f *flags) applySettings(shared map[string]string) error {
	if err := f.checkSettings(shared); err != nil {
		return err
	}
	for name, value := range shared {
		flag := f.sharedFlag(name)
		if flag == nil || !slices.Contains(sharedFlags, name) {
			continue // of a newer version
		}
		if err := flag.Value.Set(value); err != nil {
			return fmt.Errorf("the setting %s of the other servers: %w", name, err)
		}
	}
	return nil
}

func (f *flags) sharedSettings() map[string]string {
	settings := map[string]string{}
	for _, name := range sharedFlags {
		if flag := f.sharedFlag(name); flag != nil {
			settings[name] = flag.Value.String()
		}
	}
	return settings
}

// sharedFlag returns nil for a flag that this program does not have.
func (f *flags) sharedFlag(name string) *pflag.Flag {
	if f.join.flags == nil {
		return nil
	}
	return f.join.flags.Lookup(name)
}

// Command floor is the lower limit for the size of rik's control plane. It is Kubernetes' sample
// of the generic control plane with an embedded etcd, in one process, without rik's code. The
// benchmarks measure it next to rik, in the same run.
//
// It serves on 127.0.0.1 for clients with the token "floor", and has no other use.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"
)

func main() {
	dir := flag.String("data-dir", "", "where everything is kept; a short path, for sockets lie in it")
	port := flag.Int("port", 5000, "port of the API")
	flag.Parse()
	if err := run(*dir, *port); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(dir string, port int) error {
	key := filepath.Join(dir, "service-account.key")
	tokens := filepath.Join(dir, "tokens.csv")
	// Without authorization the sample accepts no anonymous requests, not even for its health.
	if err := errors.Join(os.MkdirAll(dir, 0o700), writeKey(key), os.WriteFile(tokens, []byte("floor,floor,floor\n"), 0o600)); err != nil {
		return err
	}
	etcd, err := startEtcd(dir)
	if err != nil {
		return fmt.Errorf("starting etcd: %w", err)
	}
	defer etcd.Close()
	command := server.NewCommand()
	command.SetArgs([]string{
		"--etcd-servers=" + etcd.Config().ListenClientUrls[0].String(),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--cert-dir=" + dir,
		"--token-auth-file=" + tokens,
		"--service-account-issuer=https://floor.invalid",
		"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
	})
	return command.Execute()
}

// startEtcd starts etcd on unix sockets, as rik does.
func startEtcd(dir string) (*embed.Etcd, error) {
	// No client connects there, but etcd requires a host and a port to advertise.
	advertised := url.URL{Scheme: "unix", Host: "floor:1"}
	socket := func(name string) string { return filepath.Join(dir, name) }
	c := embed.NewConfig()
	c.Dir = filepath.Join(dir, "etcd")
	c.ListenClientUrls = []url.URL{{Scheme: "unix", Path: socket("client.sock")}}
	c.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: socket("peer.sock")}}
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = []url.URL{advertised}, []url.URL{advertised}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.EnableGRPCGateway, c.LogLevel = false, "error"
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return nil, err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err := <-etcd.Err():
		etcd.Close()
		return nil, err
	}
}

// writeKey creates the key that signs service account tokens, unless it exists.
func writeKey(file string) error {
	if _, err := os.Stat(file); err == nil {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	pem, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	return keyutil.WriteKey(file, pem)
}

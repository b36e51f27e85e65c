package apiserver

import (
	"fmt"
	"net"
	"os"
	"sort"
	"strconv"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// kubernetesNames are the names at which Kubernetes clients inside a cluster expect their API
// server.
var kubernetesNames = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc"}

// serverHosts returns all names and addresses at which this machine may be reached. The server
// certificate is valid for them.
func serverHosts(cfg Config) ([]string, error) {
	hosts := append([]string{"localhost", "127.0.0.1", "::1", cfg.ClusterName}, kubernetesNames...)
	name, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	addresses, err := interfaceAddresses()
	if err != nil {
		return nil, err
	}
	hosts = append(hosts, name)
	hosts = append(hosts, addresses...)
	hosts = append(hosts, cfg.ExtraSANs...)
	if cfg.AdvertiseAddress != "" {
		hosts = append(hosts, cfg.AdvertiseAddress)
	}
	return unique(hosts), nil
}

// instancesLink is the bridge that a node on this machine creates for its instances. It exists
// only while the node does, and other machines cannot reach the server through it.
const instancesLink = "rik0"

func interfaceAddresses() ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces of this machine: %w", err)
	}
	var out []string
	for _, link := range all {
		if link.Name == instancesLink {
			continue
		}
		addresses, err := link.Addrs()
		if err != nil {
			continue // the link was removed in the meantime
		}
		for _, address := range addresses {
			// A link-local address is useless without the name of a link.
			if network, ok := address.(*net.IPNet); ok && !network.IP.IsLinkLocalUnicast() {
				out = append(out, network.IP.String())
			}
		}
	}
	return out, nil
}

// advertised returns the address that is announced to other machines. Kubernetes' options use
// the address of the default route. A machine without one, such as a laptop without a network,
// can still be reached from itself.
func advertised(cfg Config) (net.IP, error) {
	if cfg.AdvertiseAddress != "" {
		return net.ParseIP(cfg.AdvertiseAddress), nil
	}
	if ip := net.ParseIP(cfg.BindAddress); ip != nil && !ip.IsUnspecified() {
		return ip, nil
	}
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		return ip, nil
	}
	addresses, err := interfaceAddresses()
	if err != nil {
		return nil, err
	}
	for _, address := range addresses {
		if ip := net.ParseIP(address); !ip.IsLoopback() {
			return ip, nil
		}
	}
	return net.IPv4(127, 0, 0, 1), nil
}

// Advertised returns the address that is announced to other machines.
func (c Config) Advertised() (net.IP, error) { return advertised(c) }

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, item := range list {
		if !seen[item] {
			seen[item] = true
			out = append(out, item)
		}
	}
	sort.Strings(out)
	return out
}

// localURL returns the URL at which a client on this machine reaches the listener.
func localURL(bindAddress string, listener net.Listener) string {
	host := "127.0.0.1"
	if ip := net.ParseIP(bindAddress); ip != nil && !ip.IsUnspecified() {
		host = bindAddress
	}
	port := listener.Addr().(*net.TCPAddr).Port
	return "https://" + net.JoinHostPort(host, strconv.Itoa(port))
}

package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Defaults of Options. They allow 256 nodes with 253 instances each, and 65,534 virtual
// addresses.
const (
	DefaultClusterCIDR  = rikv1alpha1.DefaultClusterCIDR
	DefaultServiceCIDR  = rikv1alpha1.DefaultServiceCIDR
	DefaultNodeCIDRSize = 24
	DefaultDomain       = "rik.local"
)

// Bounds of sizes. In addition to its network and broadcast addresses, a node's range needs an
// address for the node and one for an instance.
const (
	smallestNodeRange    = 30
	smallestServiceRange = 30
	largestRange         = 8
	// maxNodeBits keeps the memory for the allocated ranges small.
	maxNodeBits = 20
)

// Options are the settings in the form in which a user writes them; see Settings. An empty
// field means its default.
type Options struct {
	ClusterCIDR, ServiceCIDR, Domain string
	NodeCIDRSize                     int
}

// Settings apply to a whole cluster for its whole life. Allocated addresses are not taken back
// when the settings change.
type Settings struct {
	// ClusterCIDR holds the addresses of all instances. ServiceCIDR holds the virtual addresses
	// of workloads.
	ClusterCIDR, ServiceCIDR netip.Prefix
	// NodeCIDRSize is the prefix length of one node's part of ClusterCIDR.
	NodeCIDRSize int
	// Domain is the suffix of the workloads' DNS names.
	Domain string
}

// Parse parses and validates the options. It reports every problem with the name of its flag.
func (o Options) Parse() (Settings, error) {
	if o.ClusterCIDR == "" {
		o.ClusterCIDR = DefaultClusterCIDR
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = DefaultServiceCIDR
	}
	if o.Domain == "" {
		o.Domain = DefaultDomain
	}
	if o.NodeCIDRSize == 0 {
		o.NodeCIDRSize = DefaultNodeCIDRSize
	}
	s := Settings{NodeCIDRSize: o.NodeCIDRSize, Domain: strings.TrimSuffix(o.Domain, ".")}
	var clusterErr, serviceErr error
	s.ClusterCIDR, clusterErr = parseRange("--cluster-cidr", o.ClusterCIDR)
	s.ServiceCIDR, serviceErr = parseRange("--service-cidr", o.ServiceCIDR)
	problems := []error{clusterErr, serviceErr}
	if clusterErr == nil {
		problems = append(problems, s.validateNodeSize())
	}
	if serviceErr == nil && s.ServiceCIDR.Bits() > smallestServiceRange {
		problems = append(problems, fmt.Errorf("--service-cidr %s is too small: use a prefix length of at most %d", s.ServiceCIDR, smallestServiceRange))
	}
	if clusterErr == nil && serviceErr == nil && s.ClusterCIDR.Overlaps(s.ServiceCIDR) {
		problems = append(problems, fmt.Errorf("--cluster-cidr %s and --service-cidr %s overlap", s.ClusterCIDR, s.ServiceCIDR))
	}
	if wrong := validation.IsDNS1123Subdomain(s.Domain); len(wrong) > 0 {
		problems = append(problems, fmt.Errorf("--cluster-domain %q is not a domain such as %s, in lower case", s.Domain, DefaultDomain))
	}
	if err := errors.Join(problems...); err != nil {
		return Settings{}, err
	}
	return s, nil
}

func (s *Settings) validateNodeSize() error {
	least, most := s.ClusterCIDR.Bits(), min(smallestNodeRange, s.ClusterCIDR.Bits()+maxNodeBits)
	if s.NodeCIDRSize < least || s.NodeCIDRSize > most {
		return fmt.Errorf("--node-cidr-size %d does not fit --cluster-cidr %s: use %d to %d", s.NodeCIDRSize, s.ClusterCIDR, least, most)
	}
	return nil
}

// parseRange parses an IPv4 range whose addresses machines may have.
func parseRange(flag, text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%s %q is not an address range such as %s", flag, text, DefaultClusterCIDR)
	case !p.Addr().Is4():
		return netip.Prefix{}, fmt.Errorf("%s %s: only IPv4 is supported", flag, p)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s %s does not begin with its first address: use %s", flag, p, p.Masked())
	case p.Bits() < largestRange || p.Bits() > smallestNodeRange:
		return netip.Prefix{}, fmt.Errorf("%s %s: use a prefix length of %d to %d", flag, p, largestRange, smallestNodeRange)
	case !p.Addr().IsGlobalUnicast():
		return netip.Prefix{}, fmt.Errorf("%s %s: machines cannot have these addresses", flag, p)
	}
	return p, nil
}

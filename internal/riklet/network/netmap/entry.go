package netmap

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unique"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// String returns the usual form of a workload's name.
func (k ServiceKey) String() string { return k.Namespace + "/" + k.Workload }

func (s Service) equal(o Service) bool {
	return s.Key == o.Key && slices.Equal(s.Addresses, o.Addresses) && slices.Equal(s.Ports, o.Ports)
}

func (e Endpoint) equal(o Endpoint) bool {
	return e.UID == o.UID && e.Service == o.Service && e.Name == o.Name && e.Node == o.Node &&
		e.Address == o.Address && e.Ready == o.Ready && e.Draining == o.Draining && slices.Equal(e.Ports, o.Ports)
}

// once returns a shared copy of a string that occurs in thousands of entries.
func once(s string) string { return unique.Make(s).Value() }

func decodeSettings(m *nodev1.NetworkSettings) (Settings, error) {
	cluster, err := decodePrefix(m.GetClusterCidr())
	if err != nil {
		return Settings{}, fmt.Errorf("the address range of instances: %w", err)
	}
	service, err := decodePrefix(m.GetServiceCidr())
	if err != nil {
		return Settings{}, fmt.Errorf("the range of cluster IPs: %w", err)
	}
	domain := strings.ToLower(strings.Trim(m.GetDomain(), "."))
	if domain == "" {
		return Settings{}, errors.New("the domain is empty")
	}
	if cluster.Overlaps(service) {
		return Settings{}, fmt.Errorf("the ranges %s and %s overlap", cluster, service)
	}
	return Settings{ClusterCIDR: cluster, ServiceCIDR: service, Domain: domain}, nil
}

// decodePrefix parses an IPv4 range. A node does not support IPv6 yet.
func decodePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, err
	case !p.Addr().Is4():
		return netip.Prefix{}, fmt.Errorf("%s is IPv6, which rik does not support for instances", p)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s does not begin with its first address, %s", p, p.Masked())
	case p.Bits() < 4 || p.Bits() > 30:
		return netip.Prefix{}, fmt.Errorf("%s has too many or too few addresses", p)
	}
	return p, nil
}

func decodePeer(m *nodev1.Peer) (Peer, error) {
	p := Peer{Name: m.GetName(), Answers: m.GetAnswers()}
	if p.Name == "" {
		return Peer{}, errors.New("no name")
	}
	var err error
	if p.Address, err = decodeAddress(m.GetAddress()); err != nil {
		return Peer{}, err
	}
	if p.External, err = decodeAddress(m.GetExternalAddress()); err != nil {
		return Peer{}, err
	}
	if m.GetPodCidr() == "" {
		return p, nil
	}
	p.PodCIDR, err = decodePrefix(m.GetPodCidr())
	return p, err
}

// decodeAddress returns the invalid address for an empty text.
func decodeAddress(text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, err
	}
	if a = a.Unmap(); a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s is not the address of a single machine", a)
	}
	return a, nil
}

func decodeKey(m *nodev1.ServiceKey) ServiceKey {
	return ServiceKey{Namespace: once(m.GetNamespace()), Workload: once(m.GetWorkload())}
}

func (k ServiceKey) validate() error {
	if k.Namespace == "" || k.Workload == "" {
		return errors.New("no namespace or no workload")
	}
	return nil
}

func (t *Store) decodeService(m *nodev1.Service) (Service, error) {
	s := Service{Key: decodeKey(m.GetKey())}
	if err := s.Key.validate(); err != nil {
		return Service{}, err
	}
	for _, text := range m.GetAddresses() {
		a, err := decodeAddress(text)
		if err != nil {
			return Service{}, err
		}
		if !a.IsValid() {
			return Service{}, errors.New("an address is empty")
		}
		s.Addresses = append(s.Addresses, a)
	}
	s.Ports = t.decodePorts("service", s.Key.String(), m.GetPorts())
	return s, nil
}

// decodePorts skips ports that it cannot parse. The service of a newer controller can still be
// reached at its other ports.
func (t *Store) decodePorts(kind, name string, ms []*nodev1.ServicePort) []Port {
	var ports []Port
	for _, m := range ms {
		p, err := decodePort(m)
		if err != nil {
			t.refused("port of "+kind, name, err)
			continue
		}
		ports = append(ports, p)
	}
	return ports
}

func decodePort(m *nodev1.ServicePort) (Port, error) {
	for _, n := range []int32{m.GetPort(), m.GetTargetPort()} {
		if n < 1 || n > math.MaxUint16 {
			return Port{}, fmt.Errorf("port %d is not between 1 and 65535", n)
		}
	}
	p := Port{
		Name: once(m.GetName()), Port: uint16(m.GetPort()), TargetPort: uint16(m.GetTargetPort()),
		Protocol: rikv1alpha1.Protocol(once(m.GetProtocol())), Type: rikv1alpha1.PortType(once(m.GetType())),
	}
	switch p.Protocol {
	case rikv1alpha1.ProtocolTCP, rikv1alpha1.ProtocolUDP, rikv1alpha1.ProtocolSCTP:
	default:
		return Port{}, fmt.Errorf("protocol %q is not TCP, UDP or SCTP", p.Protocol)
	}
	switch p.Type {
	case rikv1alpha1.PortClusterIP, rikv1alpha1.PortNodePort, rikv1alpha1.PortLoadBalancer:
	default:
		return Port{}, fmt.Errorf("type %q is not clusterIP, nodePort or loadBalancer", p.Type)
	}
	return p, nil
}

func (t *Store) decodeEndpoint(m *nodev1.Endpoint) (Endpoint, error) {
	e := Endpoint{
		UID: m.GetUid(), Service: decodeKey(m.GetService()), Name: m.GetName(), Node: once(m.GetNode()),
		Ready: m.GetReady(), Draining: m.GetDraining(),
	}
	if e.UID == "" {
		return Endpoint{}, errors.New("no UID")
	}
	if err := e.Service.validate(); err != nil {
		return Endpoint{}, err
	}
	var err error
	if e.Address, err = decodeAddress(m.GetAddress()); err != nil {
		return Endpoint{}, err
	}
	// Without an address it cannot receive connections, even if it is ready.
	e.Ready = e.Ready && e.Address.IsValid()
	e.Ports = t.decodePorts("endpoint", e.UID, m.GetPorts())
	return e, nil
}

// Encode returns the whole netmap as one message for Apply.
func (s *Snapshot) Encode() *nodev1.NetworkChanges {
	c := &nodev1.NetworkChanges{Begin: true, Complete: true}
	if s.Settings != (Settings{}) {
		c.Settings = &nodev1.NetworkSettings{
			ClusterCidr: s.Settings.ClusterCIDR.String(), ServiceCidr: s.Settings.ServiceCIDR.String(), Domain: s.Settings.Domain,
		}
	}
	for _, p := range s.Peers {
		c.Peers = append(c.Peers, &nodev1.Peer{Name: p.Name, Address: addressText(p.Address), ExternalAddress: addressText(p.External), PodCidr: prefixText(p.PodCIDR), Answers: p.Answers})
	}
	for _, v := range s.Services {
		m := &nodev1.Service{Key: v.Key.encode(), Ports: encodePorts(v.Ports)}
		for _, a := range v.Addresses {
			m.Addresses = append(m.Addresses, a.String())
		}
		c.Services = append(c.Services, m)
	}
	for _, all := range s.Endpoints {
		for _, e := range all {
			c.Endpoints = append(c.Endpoints, &nodev1.Endpoint{
				Uid: e.UID, Service: e.Service.encode(), Name: e.Name, Node: e.Node,
				Address: addressText(e.Address), Ready: e.Ready, Draining: e.Draining, Ports: encodePorts(e.Ports),
			})
		}
	}
	return c
}

func (k ServiceKey) encode() *nodev1.ServiceKey {
	return &nodev1.ServiceKey{Namespace: k.Namespace, Workload: k.Workload}
}

func encodePorts(ports []Port) []*nodev1.ServicePort {
	var ms []*nodev1.ServicePort
	for _, p := range ports {
		ms = append(ms, &nodev1.ServicePort{
			Name: p.Name, Port: int32(p.Port), TargetPort: int32(p.TargetPort), Protocol: string(p.Protocol), Type: string(p.Type),
		})
	}
	return ms
}

// addressText returns "" for the invalid address, which is the zero value.
func addressText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func prefixText(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

package node

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// validateInterface sets the address to that of the named interface, unless an address is set.
func (o *Options) validateInterface() []error {
	if o.Address != "" || o.Interface == "" {
		return nil
	}
	address, err := addressOf(o.Interface)
	if err != nil {
		return []error{usagef("--iface %q: %w", o.Interface, err)}
	}
	o.Address = address
	return nil
}

// addressOf returns the first IPv4 address of an interface at which other machines can reach
// this machine.
func addressOf(name string) (string, error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return "", fmt.Errorf("the interface does not exist; this machine has %s", interfaces())
	}
	addresses, err := link.Addrs()
	if err != nil {
		return "", err
	}
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLinkLocalUnicast() {
			return ip.IP.String(), nil
		}
	}
	return "", errors.New("it has no IPv4 address")
}

func interfaces() string {
	all, err := net.Interfaces()
	if err != nil {
		return "no interfaces that can be listed"
	}
	var names []string
	for i := range all {
		names = append(names, all[i].Name)
	}
	return strings.Join(names, ", ")
}

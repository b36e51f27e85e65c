package monitor

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// AddressOf returns the first IPv4 address of an interface at which other machines can reach this
// machine.
func AddressOf(name string) (string, error) {
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

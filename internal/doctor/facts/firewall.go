package facts

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/riklet/network/iptables"
)

func (g *gatherer) firewall(ctx context.Context, root bool) doctor.Firewall {
	f := doctor.Firewall{Range: g.clusterRange()}
	f.UFW = strings.Contains(text("/etc/ufw/ufw.conf"), "ENABLED=yes")
	f.Firewalld = slices.ContainsFunc(g.processes, func(p process) bool { return p.name == "firewalld" })
	if f.Firewalld {
		zone, err := exec.CommandContext(ctx, "firewall-cmd", "--get-zone-of-source="+f.Range.String()).Output()
		f.Trusts = err == nil && strings.TrimSpace(string(zone)) == "trusted"
		if ports, err := exec.CommandContext(ctx, "firewall-cmd", "--list-ports").Output(); err == nil {
			f.Open = strings.Fields(string(ports))
		}
	}
	if !root {
		return f
	}
	used, other, err := iptables.Find(ctx)
	if err != nil {
		f.Problem = err.Error()
	}
	for _, tool := range []*iptables.Tool{used, other} {
		if tool == nil {
			continue
		}
		v := doctor.Variant{Name: string(tool.Variant), Program: tool.Program(), Used: tool == used}
		var err, err2 error
		v.Others, v.Own, err = tool.InUse(ctx)
		v.Filter, err2 = tool.Chains(ctx, "filter")
		if err != nil || err2 != nil {
			continue
		}
		f.Variants = append(f.Variants, v)
	}
	useOwn(f.Variants)
	f.Chains = nftChains()
	return f
}

// useOwn marks the variant that has rik's rules as the used one. A running node keeps its variant,
// also if another program adds rules to the other one. Only its next start chooses again.
func useOwn(variants []doctor.Variant) {
	own := slices.IndexFunc(variants, func(v doctor.Variant) bool { return v.Own })
	if own < 0 {
		return
	}
	for i := range variants {
		variants[i].Used = i == own
	}
}

// nftChains returns the base chains of nftables at the hooks of packets to and through this machine,
// without those of iptables-nft.
func nftChains() []doctor.NFTChain {
	conn, err := nftables.New()
	if err != nil {
		return nil
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil // a kernel without nftables
	}
	var all []doctor.NFTChain
	for _, c := range chains {
		family := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyINet: "inet"}[c.Table.Family]
		if family == "" || c.Hooknum == nil || c.Type != nftables.ChainTypeFilter || ofIptables(c.Table) {
			continue
		}
		found := doctor.NFTChain{Family: family, Table: c.Table.Name, Name: c.Name}
		switch *c.Hooknum {
		case unix.NF_INET_LOCAL_IN:
			found.Hook = "input"
		case unix.NF_INET_FORWARD:
			found.Hook = "forward"
		default:
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			continue
		}
		found.Drops = c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		for _, rule := range rules {
			accepted, drops := meaning(rule.Exprs)
			if drops {
				found.Drops = true
				break // no later rule matters
			}
			found.Accepts = append(found.Accepts, accepted...)
		}
		all = append(all, found)
	}
	return all
}

// ofIptables reports whether a table has the name of one of iptables-nft's.
func ofIptables(t *nftables.Table) bool {
	return t.Family == nftables.TableFamilyIPv4 && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, t.Name)
}

// Offsets and sizes in the headers of IPv4 and of TCP and UDP, in bytes.
const (
	offsetSource      = 12
	offsetDestination = 16
	offsetPort        = 2
	bytesOfPort       = 2
)

// matched are the conditions of a rule.
type matched struct {
	device    string
	protocols []string
	port      int
	address   string // such as "saddr 10.62.0.0/16"
	other     bool   // a condition that is not known here
}

// meaning returns what a rule accepts, in the words of doctor.NFTChain, and whether it drops every
// packet.
func meaning(exprs []expr.Any) (accepts []string, dropsAll bool) {
	var m matched
	var load expr.Any
	var mask []byte
	verdict := expr.VerdictContinue
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta, *expr.Payload:
			load, mask = e, nil
		case *expr.Bitwise:
			mask = e.Mask
		case *expr.Cmp:
			m.compare(load, mask, e)
		case *expr.Lookup:
			m.lookup(load)
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			verdict = e.Kind
		case *expr.Reject:
			verdict = expr.VerdictDrop
		default:
			m.other = true
		}
	}
	switch {
	case m.other:
		return nil, false
	case verdict == expr.VerdictAccept:
		return m.words(), false
	}
	return nil, verdict == expr.VerdictDrop && m.device == "" && m.protocols == nil && m.port == 0 && m.address == ""
}

func (m *matched) words() []string {
	switch {
	case m.address != "" && m.port == 0:
		return []string{m.address}
	case m.port == 0:
		return nil
	}
	var all []string
	for _, p := range m.protocols {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %d", m.device, p, m.port)))
	}
	return all
}

// lookup records a comparison with a set. Only a set of protocols is supported, as in
// "meta l4proto { tcp, udp }". Its elements are not read.
func (m *matched) lookup(load expr.Any) {
	if meta, ok := load.(*expr.Meta); ok && meta.Key == expr.MetaKeyL4PROTO {
		m.protocols = []string{"tcp", "udp"}
		return
	}
	m.other = true
}

func (m *matched) compare(load expr.Any, mask []byte, cmp *expr.Cmp) {
	if cmp.Op != expr.CmpOpEq {
		m.other = true
		return
	}
	switch load := load.(type) {
	case *expr.Meta:
		m.meta(load.Key, cmp.Data)
	case *expr.Payload:
		m.payload(load, mask, cmp.Data)
	default:
		m.other = true
	}
}

func (m *matched) meta(key expr.MetaKey, data []byte) {
	switch key {
	case expr.MetaKeyNFPROTO, expr.MetaKeyPROTOCOL:
	case expr.MetaKeyIIFNAME:
		m.device = string(bytes.TrimRight(data, "\x00"))
	case expr.MetaKeyL4PROTO:
		name := map[byte]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}
		if len(data) == 1 && name[data[0]] != "" {
			m.protocols = []string{name[data[0]]}
			return
		}
		m.other = true
	default:
		m.other = true
	}
}

func (m *matched) payload(p *expr.Payload, mask, data []byte) {
	field := map[uint32]string{offsetSource: "saddr", offsetDestination: "daddr"}[p.Offset]
	switch {
	case p.Base == expr.PayloadBaseTransportHeader && p.Offset == offsetPort && p.Len == bytesOfPort && len(data) == bytesOfPort:
		m.port = int(binary.BigEndian.Uint16(data))
	case p.Base == expr.PayloadBaseNetworkHeader && field != "" && len(data) <= 4:
		var address [4]byte
		copy(address[:], data)
		length := 8 * len(data)
		if mask != nil {
			length = 0
			for _, b := range mask {
				length += bits.OnesCount8(b)
			}
		}
		m.address = field + " " + netip.PrefixFrom(netip.AddrFrom4(address), length).String()
	default:
		m.other = true
	}
}

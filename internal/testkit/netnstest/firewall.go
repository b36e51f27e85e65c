package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Hook is a place in the kernel at which a firewall sees packets.
type Hook uint32

// The hooks of packets to this machine, through it and from it.
const (
	Input   Hook = unix.NF_INET_LOCAL_IN
	Forward Hook = unix.NF_INET_FORWARD
	Output  Hook = unix.NF_INET_LOCAL_OUT
)

// Constants of linux/netfilter/nf_tables.h that package unix does not have, or has under names
// that say less.
const (
	familyINET    = 1 // NFPROTO_INET
	batchBegin    = 0x10
	batchEnd      = 0x11
	filterHook    = 0 // the priority of filter tables
	codeDrop      = 0
	codeAccept    = 1
	bytesOfName   = 16 // IFNAMSIZ
	bytesOfState  = 4
	maskOfReplies = 1<<1 | 1<<2 // established and related, as bits of a connection's state
)

// Firewall adds an nftables table of another program than rik. Its chain at the hook drops every
// packet, except replies and packets that arrive on one of the given links. A table of the same
// name is replaced. An accept in iptables does not help: a packet must pass every table.
func (n *NS) Firewall(table string, at Hook, links ...string) {
	n.tb.Helper()
	rules := [][]byte{rule(table, connection(), replies(), notZero(), accept())}
	for _, link := range links {
		rules = append(rules, rule(table, arrivedOn(), equals(link), accept()))
	}
	messages := []message{
		{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, attributes(text(unix.NFTA_TABLE_NAME, table))},
		{unix.NFT_MSG_DELTABLE, 0, attributes(text(unix.NFTA_TABLE_NAME, table))},
		{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, attributes(text(unix.NFTA_TABLE_NAME, table))},
		{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chain(table, at)},
	}
	for _, r := range rules {
		messages = append(messages, message{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, r})
	}
	n.change(messages)
}

// NoFirewall removes a table that Firewall added.
func (n *NS) NoFirewall(table string) {
	n.tb.Helper()
	n.change([]message{{unix.NFT_MSG_DELTABLE, 0, attributes(text(unix.NFTA_TABLE_NAME, table))}})
}

// message is one change of nftables.
type message struct {
	kind, flags int
	attributes  []byte
}

// change makes all changes or none.
func (n *NS) change(messages []message) {
	n.tb.Helper()
	var err error
	n.Do(func() { err = transact(messages) })
	if err != nil {
		n.tb.Fatalf("changing nftables: %v", err)
	}
}

// transact sends one batch, in the namespace of the calling thread.
func transact(messages []message) error {
	batch := packet(batchBegin, 0, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)
	for i, m := range messages {
		kind := unix.NFNL_SUBSYS_NFTABLES<<8 | m.kind
		batch = append(batch, packet(kind, m.flags|unix.NLM_F_ACK, i+1, familyINET, 0, m.attributes)...)
	}
	batch = append(batch, packet(batchEnd, 0, len(messages)+1, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, nil)...)
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	return answers(fd, messages)
}

// answers reads one answer for each message, or the first that is an error.
func answers(fd int, messages []message) error {
	buffer := make([]byte, 64<<10)
	for left := len(messages); left > 0; {
		length, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for rest := buffer[:length]; len(rest) >= unix.SizeofNlMsghdr; left-- {
			size, sequence := binary.NativeEndian.Uint32(rest), binary.NativeEndian.Uint32(rest[8:])
			if size < unix.SizeofNlMsghdr+4 || int(size) > len(rest) {
				return errors.New("an answer is cut off")
			}
			code := int32(binary.NativeEndian.Uint32(rest[unix.SizeofNlMsghdr:]))
			if code != 0 {
				return fmt.Errorf("message %d: %w", sequence, unix.Errno(-code))
			}
			rest = rest[min(len(rest), (int(size)+3)&^3):]
		}
	}
	return nil
}

// packet returns a message with the headers of netlink and of nfnetlink.
func packet(kind, flags, sequence int, family byte, resource uint16, attributes []byte) []byte {
	var p []byte
	p = binary.NativeEndian.AppendUint32(p, uint32(unix.SizeofNlMsghdr+4+len(attributes)))
	p = binary.NativeEndian.AppendUint16(p, uint16(kind))
	p = binary.NativeEndian.AppendUint16(p, uint16(flags|unix.NLM_F_REQUEST))
	p = binary.NativeEndian.AppendUint32(p, uint32(sequence))
	p = binary.NativeEndian.AppendUint32(p, 0)
	p = append(p, family, unix.NFNETLINK_V0)
	p = binary.BigEndian.AppendUint16(p, resource)
	return append(p, attributes...)
}

// chainName is the name of the only chain of a table.
const chainName = "guard"

func chain(table string, at Hook) []byte {
	hook := nested(unix.NFTA_CHAIN_HOOK, number(unix.NFTA_HOOK_HOOKNUM, uint32(at)), number(unix.NFTA_HOOK_PRIORITY, filterHook))
	return attributes(
		text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, chainName), hook,
		number(unix.NFTA_CHAIN_POLICY, codeDrop), text(unix.NFTA_CHAIN_TYPE, "filter"),
	)
}

func rule(table string, expressions ...*nl.RtAttr) []byte {
	return attributes(
		text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chainName), nested(unix.NFTA_RULE_EXPRESSIONS, expressions...),
	)
}

// arrivedOn loads the name of the link on which a packet arrived.
func arrivedOn() *nl.RtAttr {
	return expression("meta", number(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME), number(unix.NFTA_META_DREG, unix.NFT_REG_1))
}

// equals continues if the loaded name is the given one.
func equals(name string) *nl.RtAttr {
	padded := make([]byte, bytesOfName)
	copy(padded, name)
	return compare(unix.NFT_CMP_EQ, padded)
}

// connection loads the state of a packet's connection.
func connection() *nl.RtAttr {
	return expression("ct", number(unix.NFTA_CT_KEY, unix.NFT_CT_STATE), number(unix.NFTA_CT_DREG, unix.NFT_REG_1))
}

// replies clears all bits of the loaded state except those of replies.
func replies() *nl.RtAttr {
	value := func(kind int, bits uint32) *nl.RtAttr {
		return nested(kind, nl.NewRtAttr(unix.NFTA_DATA_VALUE, binary.NativeEndian.AppendUint32(nil, bits)))
	}
	return expression("bitwise", number(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1), number(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
		number(unix.NFTA_BITWISE_LEN, bytesOfState), value(unix.NFTA_BITWISE_MASK, maskOfReplies), value(unix.NFTA_BITWISE_XOR, 0))
}

// notZero continues if the loaded state has any bit.
func notZero() *nl.RtAttr { return compare(unix.NFT_CMP_NEQ, make([]byte, bytesOfState)) }

func compare(operation uint32, value []byte) *nl.RtAttr {
	return expression("cmp", number(unix.NFTA_CMP_SREG, unix.NFT_REG_1), number(unix.NFTA_CMP_OP, operation),
		nested(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, value)))
}

func accept() *nl.RtAttr {
	verdict := nested(unix.NFTA_DATA_VERDICT, number(unix.NFTA_VERDICT_CODE, codeAccept))
	return expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT), nested(unix.NFTA_IMMEDIATE_DATA, verdict))
}

func expression(name string, data ...*nl.RtAttr) *nl.RtAttr {
	return nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

func attributes(all ...*nl.RtAttr) (data []byte) {
	for _, a := range all {
		data = append(data, a.Serialize()...)
	}
	return data
}

func nested(kind int, inside ...*nl.RtAttr) *nl.RtAttr {
	a := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, i := range inside {
		a.AddChild(i)
	}
	return a
}

func number(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, value))
}

func text(kind int, value string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(value)) }

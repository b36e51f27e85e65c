package iptables

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"rik.dev/rik/internal/atomicfile"
)

// iptables-nft creates a table of nftables, and the kernel's chains in it, when a rule needs them. It
// has no command that removes a table. So the keeper records what its transactions create, and
// RemoveCreated removes it. The legacy variant has the tables that its modules bring, and needs
// none of this.

// place is a table, or one of the kernel's chains in a table.
type place struct{ table, chain string }

func (p place) String() string { return strings.TrimSpace(p.table + " " + p.chain) }

// readPlaces reads a record. Each line is a table, or a table and a chain.
func readPlaces(path string) ([]place, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of created tables: %w", err)
	}
	var all []place
	for line := range strings.Lines(string(text)) {
		switch fields := strings.Fields(line); len(fields) {
		case 1:
			all = append(all, place{table: fields[0]})
		case 2:
			all = append(all, place{fields[0], fields[1]})
		}
	}
	return all, nil
}

// places returns the tables and the kernel's chains that a ruleset needs.
func (r Ruleset) places() []place {
	var all []place
	for _, name := range slices.Sorted(maps.Keys(r)) {
		all = append(all, place{table: name})
		for _, jump := range r[name].Jumps {
			all = append(all, place{name, jump.From})
		}
	}
	return all
}

// record adds to the record what a transaction is about to create.
func (k *Keeper) record(want Ruleset) error {
	if k.created == "" || k.tool.Variant != NFTables {
		return nil
	}
	needed := slices.DeleteFunc(want.places(), func(p place) bool { return k.settled[p] })
	if len(needed) == 0 {
		return nil
	}
	all, err := readPlaces(k.created)
	if err != nil {
		return err
	}
	// Not from the output of iptables-save, which also has chains that do not exist.
	existing, err := existingPlaces()
	if err != nil {
		return err
	}
	before := len(all)
	for _, p := range needed {
		if _, exists := existing[p]; !exists && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	if len(all) > before {
		var text strings.Builder
		for _, p := range all {
			fmt.Fprintln(&text, p)
		}
		if err := atomicfile.WriteUnsynced(k.created, []byte(text.String())); err != nil {
			return fmt.Errorf("recording which tables are created: %w", err)
		}
	}
	for _, p := range needed {
		k.settled[p] = true
	}
	return nil
}

// existingPlaces returns the tables of IPv4 in nftables and their chains. The value of a chain says
// whether its policy is ACCEPT.
func existingPlaces() (map[place]bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("opening nftables: %w", err)
	}
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("reading the tables of nftables: %w", err)
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, fmt.Errorf("reading the chains of nftables: %w", err)
	}
	all := map[place]bool{}
	for _, t := range tables {
		all[place{table: t.Name}] = true
	}
	for _, c := range chains {
		all[place{c.Table.Name, c.Name}] = c.Policy != nil && *c.Policy == nftables.ChainPolicyAccept
	}
	return all, nil
}

// RemoveCreated removes the tables and chains of a record that have no content, and then the record.
// It is for a machine whose rules of rik's are removed already. A chain with a rule or with another
// policy than ACCEPT stays, and so does a table with any content. The kernel checks that in the
// same step, so a rule that another program adds meanwhile is not lost.
func (t *Tool) RemoveCreated(path string) error {
	if t.Variant != NFTables {
		return nil
	}
	all, err := readPlaces(path)
	if err != nil || len(all) == 0 {
		return err
	}
	accepts, err := existingPlaces()
	if err != nil {
		return err
	}
	// The chains first: a table with chains stays.
	slices.SortStableFunc(all, func(a, b place) int { return strings.Compare(b.chain, a.chain) })
	for _, p := range all {
		if p.chain != "" && !accepts[p] {
			continue
		}
		if err := removeEmpty(p); err != nil {
			return fmt.Errorf("removing %q, which rik created in nftables: %w", p, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the record of created tables: %w", err)
	}
	return nil
}

// removeEmpty removes a table or a chain, in a transaction that fails if it has content. It is no error
// if it has content, because another program then uses it, or if it does not exist.
func removeEmpty(p place) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	kind, attributes := unix.NFT_MSG_DELTABLE, []netlink.Attribute{{Type: unix.NFTA_TABLE_NAME, Data: []byte(p.table + "\x00")}}
	if p.chain != "" {
		kind = unix.NFT_MSG_DELCHAIN
		attributes = []netlink.Attribute{
			{Type: unix.NFTA_CHAIN_TABLE, Data: []byte(p.table + "\x00")},
			{Type: unix.NFTA_CHAIN_NAME, Data: []byte(p.chain + "\x00")},
		}
	}
	data, err := netlink.MarshalAttributes(attributes)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	// Each message begins with a struct nfgenmsg: the family, the version, and an ID in network
	// byte order, which is the subsystem at the ends of a batch.
	end := []byte{unix.AF_UNSPEC, 0, 0, unix.NFNL_SUBSYS_NFTABLES}
	_, err = conn.SendMessages([]netlink.Message{
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_BEGIN, Flags: netlink.Request}, Data: end},
		{
			// Without NLM_F_NONREC the kernel would remove the content too.
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Acknowledge | unix.NLM_F_NONREC},
			Data:   append([]byte{unix.AF_INET, 0, 0, 0}, data...),
		},
		{Header: netlink.Header{Type: unix.NFNL_MSG_BATCH_END, Flags: netlink.Request}, Data: end},
	})
	if err == nil {
		_, err = conn.Receive()
	}
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return errors.Join(err, conn.Close())
}

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

func TestNew(t *testing.T) {
	t.Parallel()
	cases := []struct {
		prefix  string
		gateway string
		free    int
		err     error
	}{
		{"10.62.1.0/24", "10.62.1.1", 253, nil},
		{"10.62.1.4/30", "10.62.1.5", 1, nil},
		{"10.62.0.0/16", "10.62.0.1", 65533, nil},
		{"10.62.1.0/31", "", 0, ErrRange},
		{"10.0.0.0/8", "", 0, ErrRange},
		{"10.62.1.7/24", "", 0, ErrRange},
		{"fd00::/64", "", 0, ErrRange},
		{"::ffff:10.62.1.0/120", "", 0, ErrRange},
	}
	for _, tc := range cases {
		t.Run(tc.prefix, func(t *testing.T) {
			t.Parallel()
			p, err := New(netip.MustParsePrefix(tc.prefix))
			if !errors.Is(err, tc.err) {
				t.Fatalf("New(%s) = %v, want %v", tc.prefix, err, tc.err)
			}
			if err != nil {
				return
			}
			if p.Gateway().String() != tc.gateway || p.Free() != tc.free || p.Prefix().String() != tc.prefix {
				t.Errorf("New(%s): gateway %s and %d free, want %s and %d", tc.prefix, p.Gateway(), p.Free(), tc.gateway, tc.free)
			}
		})
	}
	if _, err := New(netip.Prefix{}); !errors.Is(err, ErrRange) {
		t.Errorf("New of nothing = %v, want ErrRange", err)
	}
}

// TestCheck checks that no instance gets the address of the check port.
func TestCheck(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"10.62.1.0/24": "10.62.1.255", "10.62.1.4/30": "10.62.1.7", "10.62.254.0/23": "10.62.255.255", "10.62.0.0/16": "10.62.255.255",
	} {
		got := Check(netip.MustParsePrefix(prefix))
		if got.String() != want {
			t.Errorf("Check(%s) = %s, want %s", prefix, got, want)
		}
		p, err := New(netip.MustParsePrefix(prefix))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Reserve("u", got); !errors.Is(err, ErrOutside) {
			t.Errorf("Reserve(%s) = %v, want ErrOutside", got, err)
		}
	}
}

func TestAddressesAcrossBytes(t *testing.T) {
	t.Parallel()
	p, err := New(netip.MustParsePrefix("10.62.254.0/23"))
	if err != nil {
		t.Fatal(err)
	}
	var last netip.Addr
	for i := range p.Free() {
		if last, err = p.Allocate(fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "10.62.255.254"; last.String() != want {
		t.Errorf("the last address = %s, want %s", last, want)
	}
}

func TestReserve(t *testing.T) {
	t.Parallel()
	p, err := New(netip.MustParsePrefix("10.62.1.0/24"))
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		owner, address string
		err            error
	}{
		{"a", "10.62.1.9", nil},
		{"a", "10.62.1.9", nil},
		{"a", "10.62.1.10", ErrTaken},
		{"b", "10.62.1.9", ErrTaken},
		{"b", "10.62.1.0", ErrOutside},
		{"b", "10.62.1.1", ErrOutside},
		{"b", "10.62.1.255", ErrOutside},
		{"b", "10.62.2.9", ErrOutside},
		{"b", "fd00::9", ErrOutside},
		{"b", "10.62.1.254", nil},
	}
	for _, s := range steps {
		if err := p.Reserve(s.owner, netip.MustParseAddr(s.address)); !errors.Is(err, s.err) {
			t.Errorf("Reserve(%s, %s) = %v, want %v", s.owner, s.address, err, s.err)
		}
	}
	// It continues after the highest address in use, here at the start of the range.
	if a, err := p.Allocate("c"); err != nil || a.String() != "10.62.1.2" {
		t.Errorf("Allocate() = %s, %v", a, err)
	}
}

// model is a Pool as its users see it.
type model struct {
	pool   *Pool
	held   map[string]netip.Addr
	latest netip.Addr // allocated
}

func TestPoolProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(26, longest).Draw(t, "bits")
		pool, err := New(netip.PrefixFrom(netip.MustParseAddr("10.62.3.0"), bits))
		if err != nil {
			t.Fatal(err)
		}
		m := &model{pool: pool, held: map[string]netip.Addr{}}
		owner := rapid.Custom(func(t *rapid.T) string { return fmt.Sprint("u", rapid.IntRange(0, 80).Draw(t, "n")) })
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) { m.allocate(t, owner.Draw(t, "owner")) },
			"release":  func(t *rapid.T) { m.release(owner.Draw(t, "owner")) },
			"":         m.check,
		})
	})
}

func (m *model) allocate(t *rapid.T, owner string) {
	before, had := m.held[owner]
	free := m.pool.Free()
	a, err := m.pool.Allocate(owner)
	switch {
	case had && (err != nil || a != before):
		t.Fatalf("Allocate(%s) again = %s, %v, want %s", owner, a, err, before)
	case !had && free == 0 && !errors.Is(err, ErrExhausted):
		t.Fatalf("Allocate(%s) of a full pool = %s, %v, want ErrExhausted", owner, a, err)
	case !had && free > 0 && err != nil:
		t.Fatalf("Allocate(%s) with %d free = %v", owner, free, err)
	case !had && err == nil:
		if a == m.latest && free > 1 {
			t.Fatalf("%s was the latest and is given out again with %d others free", a, free-1)
		}
		m.held[owner], m.latest = a, a
	}
}

func (m *model) release(owner string) {
	m.pool.Release(owner)
	delete(m.held, owner)
}

func (m *model) check(t *rapid.T) {
	owners := map[netip.Addr]string{}
	for owner, a := range m.held {
		if other := owners[a]; other != "" {
			t.Fatalf("%s belongs to %s and %s", a, owner, other)
		}
		owners[a] = owner
		if got, ok := m.pool.Address(owner); !ok || got != a {
			t.Fatalf("Address(%s) = %s, %v, want %s", owner, got, ok, a)
		}
		if !m.pool.Prefix().Contains(a) || a == m.pool.Gateway() || a == m.pool.Prefix().Addr() {
			t.Fatalf("%s was given out of %s", a, m.pool.Prefix())
		}
	}
	size := 1 << (32 - m.pool.Prefix().Bits())
	if want := size - 3 - len(m.held); m.pool.Free() != want {
		t.Fatalf("Free() = %d, want %d", m.pool.Free(), want)
	}
}

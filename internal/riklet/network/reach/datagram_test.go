package reach

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDatagrams(t *testing.T) {
	t.Parallel()
	from := netip.MustParseAddrPort("10.62.2.255:4955")
	for _, receivesNothing := range []bool{false, true} {
		a, ok := readDatagram(datagram(request, receivesNothing, 7), from, 9)
		if !ok || a.answer || a.receivesNothing != receivesNothing || a.number != 7 || a.from != "10.62.2.255" || a.source != from.Addr() {
			t.Errorf("request: %+v, %v", a, ok)
		}
	}
	if a, ok := readDatagram(datagram(reply, false, 9), from, 9); !ok || !a.answer || a.from != "10.62.2.255" {
		t.Errorf("answer: %+v, %v", a, ok)
	}
	if len(datagram(request, true, 1)) != datagramLength {
		t.Errorf("a request has %d bytes, want %d", len(datagram(request, true, 1)), datagramLength)
	}
	for name, c := range map[string]struct {
		data []byte
		from netip.AddrPort
	}{
		"an answer to another": {datagram(reply, false, 8), from},
		"another kind":         {datagram(3, false, 9), from},
		"from another port":    {datagram(request, false, 9), netip.MustParseAddrPort("10.62.2.255:4954")},
		"longer":               {append(datagram(request, false, 9), 0), from},
		"shorter":              {datagram(request, false, 9)[:datagramLength-1], from},
		"nothing":              {nil, from},
		"without the mark":     {bytes.Repeat([]byte{request}, datagramLength), from},
	} {
		if a, ok := readDatagram(c.data, c.from, 9); ok {
			t.Errorf("%s: %+v is read", name, a)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		readDatagram(append(bytes.Clone(mark), rapid.SliceOf(rapid.Byte()).Draw(t, "data")...), from, 9)
	})
}

// TestDescribeInstances checks that a message contains the ports and addresses to accept, and fits
// into a condition.
func TestDescribeInstances(t *testing.T) {
	t.Parallel()
	var peers []Peer
	for _, n := range []string{"a", "b", "c", "d"} {
		peers = append(peers, Peer{Name: strings.Repeat(n, 63), Outer: netip.MustParseAddr("192.168.100.200")})
	}
	v := View{Cluster: netip.MustParsePrefix("10.62.0.0/16")}
	for s, part := range map[state]string{inbound: "no packet from instances", outbound: "do not arrive at instances of", waiting: unchecked} {
		text := describeInstances(s, v, peers)
		if len(text) > 1024 || !strings.Contains(text, part) || !strings.Contains(text, "aaa (192.168.100.200)") {
			t.Errorf("%s: %d bytes: %s", s, len(text), text)
		}
		if s != waiting && (!strings.Contains(text, "--add-source=10.62.0.0/16") || !strings.Contains(text, "--network=vxlan")) {
			t.Errorf("%s does not contain the next step: %s", s, text)
		}
	}
	if text := describeInstances(fine, v, peers); text != "" {
		t.Errorf("fine: %s", text)
	}
}

// TestFramesOfOtherNodesAreIgnored checks that the checker answers a node that it does not query.
// Packets of that node do not change the result.
func TestFramesOfOtherNodesAreIgnored(t *testing.T) {
	t.Parallel()
	w := &recorder{}
	near, far, unknown := Peer{Name: "b", Check: netip.MustParseAddr("10.62.2.255")}, Peer{Name: "c", Check: netip.MustParseAddr("10.62.3.255")}, netip.MustParseAddr("10.62.4.255")
	c := NewBetweenInstances(Config{
		View:     func() View { return View{Known: true, Peers: []Peer{near}, Others: []Peer{far}} },
		Notified: func(string) {}, Path: t.TempDir() + "/instances",
	})
	c.look()
	c.way = w
	for _, step := range []struct {
		from     netip.Addr
		answered int
		counted  bool
	}{{unknown, 0, false}, {far.Check, 1, false}, {near.Check, 2, true}} {
		c.take(frame{from: w, data: datagram(request, false, 1), source: netip.AddrPortFrom(step.from, sendPort)}, time.Now())
		if w.answered != step.answered || c.came.last.IsZero() == step.counted {
			t.Errorf("after a request of %s: %d answers and arrivals %v, want %d and %v", step.from, w.answered, c.came, step.answered, step.counted)
		}
	}
}

// recorder is a way that counts answers.
type recorder struct {
	datagrams
	answered int
}

func (r *recorder) answer(arrival) error {
	r.answered++
	return nil
}

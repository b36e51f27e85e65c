package network

import (
	"fmt"
	"maps"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"rik.dev/rik/internal/rpc/nodev1"
)

// mirror is a node's copy of the netmap. It applies messages as network.proto defines.
type mirror struct {
	lines    map[key]string
	staged   map[key]string // since begin
	settings *nodev1.NetworkSettings
	wholes   int
	problem  string
}

func text(m proto.Message) string { return prototext.MarshalOptions{}.Format(proto.Clone(m)) }

func (m *mirror) apply(c *nodev1.NetworkChanges) {
	if n := len(c.Peers) + len(c.Services) + len(c.Endpoints) + len(c.PeersGone) + len(c.ServicesGone) + len(c.EndpointsGone); n > maxPiece {
		m.problem = fmt.Sprintf("a message has %d entries", n)
	}
	if c.GetBegin() {
		m.staged, m.settings = map[key]string{}, c.GetSettings()
	} else if c.GetSettings() != nil {
		m.problem = "settings without begin"
	}
	lines := m.lines
	if m.staged != nil {
		lines = m.staged
	}
	if lines == nil {
		m.problem = "changes before the whole"
		return
	}
	applyTo(lines, c)
	if c.GetComplete() {
		if m.staged == nil {
			m.problem = "complete without begin"
		}
		m.lines, m.staged = m.staged, nil
		m.wholes++
	}
}

func applyTo(lines map[key]string, c *nodev1.NetworkChanges) {
	for _, p := range c.GetPeers() {
		lines[key{peerKind, "", p.GetName()}] = text(p)
	}
	for _, s := range c.GetServices() {
		lines[key{serviceKind, s.GetKey().GetNamespace(), s.GetKey().GetWorkload()}] = text(s)
	}
	for _, e := range c.GetEndpoints() {
		lines[key{endpointKind, "", e.GetUid()}] = text(e)
	}
	for _, name := range c.GetPeersGone() {
		delete(lines, key{peerKind, "", name})
	}
	for _, s := range c.GetServicesGone() {
		delete(lines, key{serviceKind, s.GetNamespace(), s.GetWorkload()})
	}
	for _, uid := range c.GetEndpointsGone() {
		delete(lines, key{endpointKind, "", uid})
	}
}

// linesOf returns the entries of a journal as text.
func linesOf(j *journal) map[key]string {
	out := map[key]string{}
	for _, m := range pieces(j.all()) {
		applyTo(out, m)
	}
	return out
}

func equal(a, b map[key]string) bool { return maps.Equal(a, b) }

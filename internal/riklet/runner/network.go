package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/spec"
)

const stepNetwork = "network"

// networked tells whether an instance gets an address of its own. Of an orphan
// nothing is known: it is taken to have one.
func (d *Driver) networked(t rikv1alpha1.InstanceTemplate) bool {
	return d.cfg.Network != nil && !t.HostNetwork
}

// networkReady says why an instance cannot be connected yet.
func (d *Driver) networkReady(t rikv1alpha1.InstanceTemplate) error {
	if !d.networked(t) {
		return nil
	}
	return d.cfg.Network.Ready()
}

// networkPoll is how often an instance looks whether the network is ready. That
// is not a failure, so the wait does not grow.
const networkPoll = time.Second

// waitForNetwork notes why the instance is not made yet.
func (m *machine) waitForNetwork(why error) {
	m.prepare.retryAt = m.now().Add(networkPoll)
	if m.trouble == why.Error() {
		return
	}
	m.trouble, m.reason = why.Error(), reasonNetwork
	m.dirty = true // it was ordered, and that is to outlive us while we wait
	m.log.Info("instance waits for the network", "err", why)
}

// network connects the supervisor's namespace. It is the last step before the
// containers, whose files it writes.
func (b *build) network(ctx context.Context) error {
	d, uid := b.d, b.in.UID
	if !d.networked(b.in.Template) {
		return nil
	}
	a, err := d.cfg.Network.Attach(ctx, uid, b.shim.PID())
	if err != nil {
		return err
	}
	hosts := spec.Hosts(b.hostname(), a.Address.Addr().String())
	if err := b.files(hosts, resolver(a, b.in.Namespace, hostSearch(d.cfg.Resolver))); err != nil {
		return err
	}
	if err := writeJSON(d.networkFile(uid), a); err != nil {
		return err
	}
	b.attachment = &a
	return nil
}

// leaveNetwork takes the instance off the network, whether or not it was on it.
func (b *build) leaveNetwork(ctx context.Context) error {
	if !b.d.networked(b.in.Template) {
		return nil
	}
	if err := os.Remove(b.d.networkFile(b.in.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.d.cfg.Network.Detach(ctx, b.in.UID)
}

// attachmentOf reads what the network step noted, nil if it was not done.
func (d *Driver) attachmentOf(uid string) *instance.Attachment {
	var a instance.Attachment
	data, err := os.ReadFile(d.networkFile(uid))
	if err != nil || json.Unmarshal(data, &a) != nil || !a.Address.IsValid() {
		return nil
	}
	return &a
}

// keepNetwork keeps the connections of what was found running and drops others.
func (d *Driver) keepNetwork(ctx context.Context, known map[string]*machine) {
	if d.cfg.Network == nil {
		return
	}
	var uids []string
	for uid, m := range known {
		if m.attachment != nil {
			uids = append(uids, uid)
		}
	}
	if err := d.cfg.Network.Keep(ctx, uids); err != nil {
		d.cfg.Logger.Warn("connections that nobody needs could not be removed", "err", err)
	}
}

// address is the instance's, empty while it has none.
func (m *machine) address() string {
	switch {
	case m.rec.Instance.Template.HostNetwork:
		return m.d.cfg.Node.Address
	case m.attachment != nil:
		return m.attachment.Address.Addr().String()
	default:
		return ""
	}
}

// resolver renders the instance's /etc/resolv.conf. With ndots:2 a workload and
// workload.namespace are looked for in the cluster first, and then in the domains that the host
// searches; a name with two dots is most likely one of the world outside, and is asked for as
// it is.
func resolver(a instance.Attachment, namespace string, host []string) string {
	var b strings.Builder
	b.WriteString("# written by rik; changes are lost when the instance ends\n")
	fmt.Fprintf(&b, "nameserver %s\n", a.DNS)
	if a.Domain == "" || !validName.MatchString(namespace) {
		return b.String()
	}
	search := []string{namespace + "." + a.Domain, instance.ShortNames + "." + a.Domain}
	size := len(strings.Join(search, " "))
	for _, domain := range host {
		if size += len(domain) + 1; len(search) == maxSearch || size > maxSearchSize {
			break
		}
		if !slices.Contains(search, domain) {
			search = append(search, domain)
		}
	}
	fmt.Fprintf(&b, "search %s\noptions ndots:2\n", strings.Join(search, " "))
	return b.String()
}

// How many domains an instance searches, and how many bytes they have: as for a kubelet's Pods.
const (
	maxSearch     = 32
	maxSearchSize = 2048
)

// searchDomain is what may stand in a list of domains; a host may have the root there, which
// is of no use.
var searchDomain = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// hostSearch gives the domains that the host searches, by its resolv.conf(5): the last line
// counts.
func hostSearch(path string) (domains []string) {
	for line := range strings.Lines(readOr(path, "")) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "search" && fields[0] != "domain" {
			continue
		}
		domains = nil
		for _, d := range fields[1:] {
			if d = strings.TrimSuffix(d, "."); searchDomain.MatchString(d) {
				domains = append(domains, d)
			}
		}
	}
	return domains
}

// DefaultDrainDelay is how long after its order a stop signal is sent to an
// instance that serves. The time is fixed: nodes that are connected have usually applied the
// table without it by then, and nothing waits for those that have not.
const DefaultDrainDelay = 3 * time.Second

// drainDelay is the part of a grace in which an instance goes on serving. A
// third at most: the rest is for its own end.
func drainDelay(configured, grace time.Duration) time.Duration {
	return max(0, min(configured, grace/3))
}

// serves tells whether others may be sending the instance connections.
func (m *machine) serves() bool {
	if !m.render().Ready {
		return false
	}
	for _, c := range m.rec.Instance.Template.Processes() {
		if len(c.Ports) > 0 {
			return true
		}
	}
	return false
}

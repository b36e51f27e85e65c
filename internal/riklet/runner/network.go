package runner

import (
	"context"
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
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

const stepNetwork = "network"

// networked reports whether an instance gets its own address. An orphan's template is not known,
// so networked assumes that it has an address.
func (d *Driver) networked(t rikv1alpha1.InstanceTemplate) bool {
	return d.cfg.Network != nil && !t.HostNetwork
}

// networkReady returns why an instance cannot be connected to the network yet.
func (d *Driver) networkReady(t rikv1alpha1.InstanceTemplate) error {
	if !d.networked(t) {
		return nil
	}
	return d.cfg.Network.Ready()
}

// networkPoll is how often an instance checks whether the network is ready. The wait is not a
// failure, so its interval does not grow.
const networkPoll = time.Second

// waitForNetwork records why the instance is not prepared yet.
func (m *machine) waitForNetwork(why error) {
	m.prepare.retryAt = m.now().Add(networkPoll)
	if m.trouble == why.Error() {
		return
	}
	m.trouble, m.reason = why.Error(), reasonNetwork
	m.dirty = true // the order must survive a restart of this process during the wait
	m.log.Info("instance waits for the network", "err", why)
}

// network connects the supervisor's network namespace to the node's network. It is the last step
// before the containers start, because it writes their network files.
func (b *build) network(ctx context.Context) error {
	d, uid := b.d, b.Instance.UID
	if !d.networked(b.Instance.Template) {
		return nil
	}
	a, err := d.cfg.Network.Attach(ctx, uid, b.Supervisor.PID())
	if err != nil {
		return err
	}
	hosts := spec.Hosts(engine.Hostname(b.Instance), a.Address.Addr().String())
	if err := b.files(hosts, resolver(a, b.Instance.Namespace, hostSearch(d.cfg.Resolver))); err != nil {
		return err
	}
	if err := engine.WriteJSON(d.paths.NetworkFile(uid), a); err != nil {
		return err
	}
	b.Attachment = &a
	return nil
}

// leaveNetwork detaches the instance from the network, whether or not it was attached.
func (b *build) leaveNetwork(ctx context.Context) error {
	if !b.d.networked(b.Instance.Template) {
		return nil
	}
	if err := os.Remove(b.d.paths.NetworkFile(b.Instance.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.d.cfg.Network.Detach(ctx, b.Instance.UID)
}

// attachmentOf reads the attachment that the network step saved. It returns nil if there is none.
func (d *Driver) attachmentOf(uid string) *instance.Attachment {
	var a instance.Attachment
	if engine.ReadJSON(d.paths.NetworkFile(uid), &a) != nil || !a.Address.IsValid() {
		return nil
	}
	return &a
}

// keepNetwork keeps the attachments of the instances that were found running, and removes all
// others.
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

// address returns the instance's address, or "" if it has none yet.
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

// resolver renders the instance's /etc/resolv.conf. With ndots:2, "workload" and
// "workload.namespace" are looked up in the cluster first, and then in the host's search domains.
// A name with two dots is most likely an external name, so it is looked up as it is.
func resolver(a instance.Attachment, namespace string, host []string) string {
	var b strings.Builder
	b.WriteString("# written by rik; changes are lost when the instance ends\n")
	fmt.Fprintf(&b, "nameserver %s\n", a.DNS)
	if a.Domain == "" || !engine.ValidName(namespace) {
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

// Limits of the search list: the number of domains and their total bytes, as for the Pods of a
// kubelet.
const (
	maxSearch     = 32
	maxSearchSize = 2048
)

// searchDomain matches a domain that is valid in a search list. A host may have the root domain
// there, which is useless for an instance.
var searchDomain = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// hostSearch returns the host's search domains from its resolv.conf(5). The last search or domain
// line counts.
func hostSearch(path string) (domains []string) {
	for line := range strings.Lines(engine.ReadOr(path, "")) {
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

// DefaultDrainDelay is the time between the order to stop an instance that serves ports and its
// stop signal. The time is fixed: connected nodes have usually applied the netmap without the
// instance by then, and the riklet does not wait for nodes that have not.
const DefaultDrainDelay = 3 * time.Second

// drainDelay returns the part of a grace period in which an instance continues to serve. It is at
// most a third: the rest is for the instance's own shutdown.
func drainDelay(configured, grace time.Duration) time.Duration {
	return max(0, min(configured, grace/3))
}

// serves reports whether clients may be sending connections to the instance.
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

package runner

import (
	"context"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
)

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

// attachmentOf reads the attachment that the network step saved. It returns nil without one.
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
		d.cfg.Logger.Warn("removing unused network attachments failed", "err", err)
	}
}

// address returns the instance's address, or "" if it has none yet.
func (m *machine) address() string {
	switch {
	case m.in.Template.HostNetwork:
		return m.d.cfg.Node.Address
	case m.attachment != nil:
		return m.attachment.Address.Addr().String()
	default:
		return ""
	}
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
	for _, c := range m.in.Template.Processes() {
		if len(c.Ports) > 0 {
			return true
		}
	}
	return false
}

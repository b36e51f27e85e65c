package manager

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// start passes an instance to the driver as soon as its template has arrived. An instance that
// waits for its template delays no other.
func (m *Manager) start(r *run) {
	if r.order == nil || r.stop || r.used || r.phase.Ended() && !r.driven {
		return
	}
	template, err := m.cfg.Objects.Revision(r.order.GetNamespace(), r.order.GetRevision())
	if template == nil {
		if err != nil && !r.driven {
			m.sendStatus(r, rikv1alpha1.InstanceCreating, "RevisionUnavailable",
				fmt.Sprintf("the revision %s/%s is not available yet: %v", r.order.GetNamespace(), r.order.GetRevision(), err))
		}
		return
	}
	fenced := template.OnDisconnect == rikv1alpha1.DisconnectStop
	if fenced && m.disconnectedAt && !r.driven {
		return // its replacement may run elsewhere
	}
	m.saveProof(r, template)
	if !r.driven && !m.isProven(r, time.Now()) {
		return // the kcp may run one elsewhere; a proof is requested
	}
	r.used = true
	m.saveInfo(r, template)
	m.cfg.Objects.Use(r.uid, r.order.GetNamespace(), template)
	m.saveFence(r.uid, fenced)
	if !r.driven {
		m.ensure(r, template)
	}
}

// ensure passes the instance to the driver, if the node runs its kind.
func (m *Manager) ensure(r *run, template *rikv1alpha1.InstanceTemplate) {
	kind := cmp.Or(template.Kind, rikv1alpha1.KindPod)
	if !slices.Contains(m.cfg.Kinds, kind) {
		m.sendStatus(r, rikv1alpha1.InstanceFailed, "KindUnsupported", fmt.Sprintf("this node cannot run instances of kind %s", kind))
		return
	}
	err := m.driver.Ensure(instance.Instance{
		UID: r.uid, Namespace: r.order.GetNamespace(), Name: r.order.GetName(), Template: *template.DeepCopy(),
	})
	if err != nil {
		m.sendStatus(r, rikv1alpha1.InstanceFailed, "StartRefused", err.Error())
		return
	}
	r.driven = true
	m.cfg.Logger.Info("received an instance to run", "instance", r.uid, "namespace", r.order.GetNamespace(), "name", r.order.GetName(), "revision", r.order.GetRevision())
}

// saveInfo publishes what sessions and checks of ports need to know about an instance.
func (m *Manager) saveInfo(r *run, t *rikv1alpha1.InstanceTemplate) {
	info := Info{Namespace: r.order.GetNamespace(), Name: r.order.GetName()}
	for _, c := range t.Processes() {
		info.Containers = append(info.Containers, c.Name)
		if c.Image != "" {
			info.Images = append(info.Images, c.Image)
		}
		if t.HostNetwork {
			info.HostPorts = append(info.HostPorts, c.Ports...)
		}
	}
	for i := range t.InitContainers {
		info.Images = append(info.Images, t.InitContainers[i].Image)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.infos[r.uid] = info
}

// observe sends the changed observations of the driver.
func (m *Manager) observe() {
	still := map[string]bool{}
	for _, o := range m.driver.Observations() {
		if m.forgotten[o.UID] && o.Status.Phase == rikv1alpha1.InstanceTerminated {
			still[o.UID] = true
			continue
		}
		m.observed(o)
	}
	m.forgotten = still
}

// observed sends an observation if it is new.
func (m *Manager) observed(o instance.Observation) {
	r := m.runs[o.UID]
	if r == nil {
		// The instance ended before the riklet restarted, so no list contained it.
		r = &run{uid: o.UID}
		m.runs[o.UID] = r
	}
	r.driven = true
	if o.Sequence != r.seen {
		r.seen = o.Sequence
		m.send(r, &o.Status)
	}
}

// sendStatus sends a status that the driver does not report. It sends the same status only once.
func (m *Manager) sendStatus(r *run, phase rikv1alpha1.InstancePhase, reason, text string) {
	if r.phase == phase && r.reason == reason && r.text == text {
		return
	}
	m.send(r, &rikv1alpha1.InstanceStatus{Phase: phase, Reason: reason, Message: text})
}

// send numbers an observation and puts it into the outbox. The sequence numbers are the
// manager's, not the driver's. They keep growing even if a driver loses its state.
func (m *Manager) send(r *run, status *rikv1alpha1.InstanceStatus) {
	sequence, err := m.cfg.Checkpoint.NextSequence()
	if err != nil {
		m.cfg.Logger.Error("saving the sequence numbers failed", "err", err)
	}
	status.Sequence = sequence
	encoded, err := status.Marshal()
	if err != nil {
		// The types are rik's own and contain nothing that cannot be encoded.
		panic("programmer error: encoding a status: " + err.Error())
	}
	if r.phase != status.Phase {
		m.cfg.Logger.Info("the phase of an instance changed", "instance", r.uid, "phase", status.Phase, "reason", status.Reason)
	}
	r.phase, r.reason, r.text = status.Phase, status.Reason, status.Message
	m.cfg.Outbox.Put(&schedulerv1.Observation{
		Uid: r.uid, Sequence: sequence, Phase: string(status.Phase), Reason: status.Reason, Message: status.Message, Status: encoded,
	})
}

// saveFence saves whether an instance must stop after a loss of the connection.
func (m *Manager) saveFence(uid string, fenced bool) {
	if err := m.cfg.Checkpoint.Fence(uid, fenced); err != nil {
		m.cfg.Logger.Error("saving a fence failed; it is only in memory", "instance", uid, "err", err)
	}
}

// setConnected starts or stops the time after which fenced instances stop.
func (m *Manager) setConnected(connected bool) {
	if connected == m.connected {
		return
	}
	m.connected = connected
	if connected {
		m.deadline = time.Time{}
		return
	}
	m.lost()
}

// lost starts that time. It is also called when the riklet starts: it is not known how long the
// riklet was down, and the scheduler starts its own time again as well.
func (m *Manager) lost() {
	if timeout := m.cfg.Checkpoint.Timeout(); timeout > 0 {
		m.deadline = time.Now().Add(timeout)
	}
}

// fence stops instances that must not run while their replacements may run elsewhere.
func (m *Manager) fence() {
	if m.deadline.IsZero() || time.Now().Before(m.deadline) {
		return
	}
	m.deadline, m.disconnectedAt = time.Time{}, true
	for _, uid := range slices.Sorted(slices.Values(m.cfg.Checkpoint.Fenced())) {
		r := m.runs[uid]
		if r == nil || r.stop || !r.driven {
			continue
		}
		m.cfg.Logger.Warn("stopping an instance because the node lost the connection to the scheduler", "instance", uid, "timeout", m.cfg.Checkpoint.Timeout())
		r.stop = true
		m.driver.Stop(uid, -1)
	}
}

package cluster

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster/pull"
	"rik.dev/rik/internal/multicluster/syncer"
	"rik.dev/rik/internal/pause"
)

// carry runs the syncer of the cluster in its mode until ctx ends. In a mode without an agent, it
// first removes an agent that an earlier mode has installed. Two syncers of one cluster would
// overwrite each other's status.
func (m *member) carry(ctx context.Context) {
	if m.mode == workloadv1alpha1.SyncPull {
		m.keepAgent(ctx)
		return
	}
	delay := backoff()
	for {
		err := m.agent.remove(ctx)
		if err == nil && m.mode == workloadv1alpha1.SyncNone {
			m.noteSyncer(nil)
			return
		}
		reason := workloadv1alpha1.ReasonErrorInstallingSyncer
		if err == nil {
			reason = workloadv1alpha1.ReasonErrorStartingSyncer
			err = m.push(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			m.noteSyncer(&problem{reason, m.errorText(err)})
			m.logger.Warn("no syncer runs", "err", m.errorText(err))
		}
		if !pause.For(ctx, delay.Step()) {
			return
		}
	}
}

// push runs the syncer in this process until it ends.
func (m *member) push(ctx context.Context) error {
	upstream := rest.CopyConfig(m.upstream)
	// The syncer has the same permissions in all modes, not those of this process.
	upstream.Impersonate = rest.ImpersonationConfig{UserName: workloadv1alpha1.SyncerUserPrefix + m.name, UID: string(m.identity.owner)}
	s, err := syncer.New(syncer.Config{
		Upstream: upstream, Downstream: rest.CopyConfig(m.downstream), Cluster: m.name, Logger: m.config.Logger, Metrics: m.config.Metrics,
		Deletes: m.config.Deletes,
	})
	if err != nil {
		return err
	}
	m.noteSyncer(nil)
	m.event(corev1.EventTypeNormal, reasonSyncerStarted, "The cluster's syncer runs in the process of the cluster controller.")
	return s.Run(ctx)
}

// keepAgent installs the agent, and installs it again when its input changes.
func (m *member) keepAgent(ctx context.Context) {
	delay := backoff()
	installed := false
	for {
		_, carried := m.wanted()
		err := m.agent.install(ctx, carried)
		if ctx.Err() != nil {
			return
		}
		again := m.config.PollInterval
		if err != nil {
			again = delay.Step()
			m.noteSyncer(&problem{workloadv1alpha1.ReasonErrorInstallingSyncer, m.errorText(err)})
			m.logger.Warn("installing the syncer", "err", m.errorText(err))
		} else {
			delay = backoff()
			m.noteSyncer(nil)
			if !installed {
				m.event(corev1.EventTypeNormal, reasonSyncerInstalled, "The cluster's syncer is installed in it, in namespace "+pull.Namespace(m.identity.owner)+".")
			}
			installed = true
		}
		if !pause.ForOr(ctx, again, m.wake) {
			return
		}
	}
}

func (m *member) noteSyncer(now *problem) {
	m.report(func(seen *observation) bool {
		same := seen.syncer == now || seen.syncer != nil && now != nil && *seen.syncer == *now
		seen.syncer = now
		return !same
	})
}

// backoff returns the delay after failures: from a second to a minute.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 1 << 30, Cap: time.Minute}
}

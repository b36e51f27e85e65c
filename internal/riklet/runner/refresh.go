package runner

import (
	"context"
	"slices"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// refreshInterval is how often mounted objects are checked without a notification.
const refreshInterval = time.Minute

func (m *machine) objectVolumes() []rikv1alpha1.Volume {
	return slices.DeleteFunc(slices.Clone(m.in.Template.Volumes), func(v rikv1alpha1.Volume) bool {
		return v.ConfigMap == nil && v.Secret == nil
	})
}

// refreshDue checks the mounted objects when they are due, and returns when they are due again.
func (m *machine) refreshDue() time.Time {
	if len(m.objectVolumes()) == 0 || m.refreshing {
		return time.Time{}
	}
	if m.refreshed.IsZero() {
		m.refreshed = m.now()
	}
	due := m.refreshed.Add(refreshInterval)
	if m.now().Before(due) {
		return due
	}
	m.refreshVolumes()
	return time.Time{}
}

// refreshVolumes writes the mounted objects again, in another goroutine.
func (m *machine) refreshVolumes() {
	volumes := m.objectVolumes()
	if len(volumes) == 0 || m.refreshing || !m.prepared || m.rec.Suspended || m.rec.Stop != nil || m.rec.Final != nil {
		return
	}
	m.refreshing = true
	m.startTask(func(ctx context.Context) func() {
		err := m.engine.Refresh(ctx, m.in, volumes)
		return func() {
			m.refreshing, m.refreshed = false, m.now()
			if err != nil && ctx.Err() == nil {
				m.log.Warn("updating mounted ConfigMaps and Secrets failed", "err", err)
			}
		}
	})
}

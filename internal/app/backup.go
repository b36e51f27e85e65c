package app

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/app/recovery"
	"rik.dev/rik/internal/controller"
)

// runBackups creates the scheduled backups until ctx ends.
func (p *plane) runBackups(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.controller.Ready():
	}
	id, err := clusterid.Read(p.settings.DataDir)
	if err != nil {
		return err
	}
	log := p.log.With("component", "backup")
	return p.settings.Backups.Run(ctx, recovery.Server{
		Backup: p.api.Backup, Active: p.controller.Active, Cluster: id.ID, DataDir: p.settings.DataDir,
		Announce: func(ctx context.Context, failed error, message string) {
			if err := p.announceBackup(ctx, failed, message); err != nil {
				log.Warn("writing an event about a backup failed", "err", err)
			}
		},
		Logger: log, Metrics: legacyregistry.Registerer(),
	})
}

// announceBackup writes an event about the Lease of the active controller.
func (p *plane) announceBackup(ctx context.Context, failed error, message string) error {
	kind, reason := corev1.EventTypeNormal, "BackupCreated"
	if failed != nil {
		kind, reason = corev1.EventTypeWarning, "BackupFailed"
	}
	now := metav1.NewMicroTime(time.Now())
	return p.controller.Client().Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: controller.Namespace, Name: fmt.Sprintf("%s.%x", controller.LeaseName, now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: controller.Namespace, Name: controller.LeaseName},
		Type:           kind, Reason: reason, Message: message[:min(len(message), 1000)], Action: "Backup",
		ReportingController: "rik-controller", ReportingInstance: "backup", EventTime: now,
		FirstTimestamp: metav1.NewTime(now.Time), LastTimestamp: metav1.NewTime(now.Time), Count: 1,
	})
}

package apiserver

import (
	"gopkg.in/natefinch/lumberjack.v2"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
)

const (
	auditFileMegabytes = 64
	auditFiles         = 4
)

// auditPolicy records who changed or entered what, without bodies: those may be
// secrets. Reads and the control plane's own housekeeping are left out, or the
// log would hold little else.
func auditPolicy() *auditinternal.Policy {
	return &auditinternal.Policy{
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
		Rules: []auditinternal.PolicyRule{
			{Level: auditinternal.LevelNone, Users: []string{user.APIServerUser}},
			{Level: auditinternal.LevelNone, Resources: []auditinternal.GroupResources{
				{Group: "", Resources: []string{"events"}},
				{Group: "events.k8s.io", Resources: []string{"events"}},
				{Group: "coordination.k8s.io", Resources: []string{"leases"}},
			}},
			{Level: auditinternal.LevelMetadata, Verbs: []string{"create", "update", "patch", "delete", "deletecollection", "post", "put"}},
			{Level: auditinternal.LevelMetadata, Resources: []auditinternal.GroupResources{
				{Group: "rik.dev", Resources: []string{"instances/exec", "instances/portforward"}},
				{Group: "", Resources: []string{"secrets"}},
			}},
			{Level: auditinternal.LevelNone},
		},
	}
}

// enableAudit returns a function that closes the log.
func enableAudit(generic *genericapiserver.Config, path string) func() error {
	if path == AuditOff {
		return func() error { return nil }
	}
	// lumberjack creates its files with mode 0600.
	out := &lumberjack.Logger{Filename: path, MaxSize: auditFileMegabytes, MaxBackups: auditFiles}
	generic.AuditPolicyRuleEvaluator = policy.NewPolicyRuleEvaluator(auditPolicy())
	generic.AuditBackend = audit.Union(auditlog.NewBackend(out, auditlog.FormatJson, auditv1.SchemeGroupVersion))
	return out.Close
}

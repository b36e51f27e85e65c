// Package audit writes the audit log: who changed, entered or read what, and who was
// denied.
//
// There are two files. The log itself holds what identified users did. A second, small
// file beside it holds requests without a valid credential. Anybody who reaches a port
// can make such requests, so they never take room from the log, only a few of them are
// recorded, and every text in an entry is cut to a bounded length.
package audit

import (
	"errors"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
)

const (
	fileMegabytes, files                 = 64, 4
	strangersMegabytes, strangersBackups = 8, 1
)

// AnnotationNotRecorded of an entry is the number of similar requests before it that were
// not recorded: of the same address without a credential, or denied to the same user.
const AnnotationNotRecorded = "rik.dev/not-recorded"

// Log is an audit log. A nil Log records nothing.
type Log struct {
	known, strangers *file
	toKnown          audit.Backend
	toStrangers      audit.Backend

	strangersLimit, deniedLimit *limiter
}

// Open makes a log that writes to path, and to the file that StrangersFile names beside
// it. The files are made at the first entry, with mode 0600.
func Open(path string) *Log {
	l := &Log{
		known:          newFile(path, fileMegabytes, files),
		strangers:      newFile(StrangersFile(path), strangersMegabytes, strangersBackups),
		strangersLimit: newLimiter(strangersRates, time.Now),
		deniedLimit:    newLimiter(deniedRates, time.Now),
	}
	l.toKnown = auditlog.NewBackend(l.known, auditlog.FormatJson, auditv1.SchemeGroupVersion)
	l.toStrangers = auditlog.NewBackend(l.strangers, auditlog.FormatJson, auditv1.SchemeGroupVersion)
	return l
}

// StrangersFile is where a log keeps the requests without a valid credential.
func StrangersFile(path string) string {
	extension := filepath.Ext(path)
	return strings.TrimSuffix(path, extension) + "-unauthenticated" + extension
}

// Policy has the API server tell the log of everything but the control plane's own
// requests. What is recorded is decided when the answer is known: a denied read is, and
// an ordinary one is not.
func Policy() audit.PolicyRuleEvaluator {
	return policy.NewPolicyRuleEvaluator(&auditinternal.Policy{
		OmitStages: []auditinternal.Stage{auditinternal.StageRequestReceived},
		Rules: []auditinternal.PolicyRule{
			{Level: auditinternal.LevelNone, Users: []string{user.APIServerUser}},
			{Level: auditinternal.LevelMetadata},
		},
	})
}

// Close closes both files.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.known.Close(), l.strangers.Close())
}

// ProcessEvents implements audit.Backend.
func (l *Log) ProcessEvents(events ...*auditinternal.Event) bool {
	all := true
	for _, event := range events {
		all = l.process(event) && all
	}
	return all
}

func (l *Log) process(event *auditinternal.Event) bool {
	switch sortOut(event) {
	case fromStranger:
		skipped, ok := l.strangersLimit.take(sourceOf(event))
		return !ok || l.toStrangers.ProcessEvents(cut(event, strangersBounds, skipped))
	case denied:
		skipped, ok := l.deniedLimit.take(event.User.Username)
		return !ok || l.toKnown.ProcessEvents(cut(event, knownBounds, skipped))
	case recorded:
		return l.toKnown.ProcessEvents(cut(event, knownBounds, 0))
	default:
		return true
	}
}

// Run implements audit.Backend.
func (l *Log) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (l *Log) Shutdown() {}

// String implements audit.Backend.
func (l *Log) String() string { return "rik" }

// Entry describes something that did not come through the API server, such as a node
// that joined.
type Entry struct {
	// Verb, Resource and Name say what was done: "join", "nodes", "n1".
	Verb, Resource, Name string
	// URI of the service that was called.
	URI string
	// User who did it; empty when the caller had no valid credential.
	User   string
	Groups []string
	// Source is the caller's address.
	Source string
	// Code is as the status code of an HTTP answer, and Message says why it was refused.
	Code    int32
	Message string
	// Annotations are further facts.
	Annotations map[string]string
}

// Record writes an entry.
func (l *Log) Record(e Entry) {
	if l == nil {
		return
	}
	now := metav1.NowMicro()
	status := metav1.StatusSuccess
	if e.Code >= 400 {
		status = metav1.StatusFailure
	}
	event := &auditinternal.Event{
		Level: auditinternal.LevelMetadata, Stage: auditinternal.StageResponseComplete,
		AuditID: uuid.NewUUID(), Verb: e.Verb, RequestURI: e.URI,
		RequestReceivedTimestamp: now, StageTimestamp: now,
		ObjectRef:      &auditinternal.ObjectReference{APIGroup: "rik.dev", APIVersion: "v1alpha1", Resource: e.Resource, Name: e.Name},
		ResponseStatus: &metav1.Status{Status: status, Code: e.Code, Message: e.Message},
		Annotations:    e.Annotations,
	}
	event.User.Username, event.User.Groups = e.User, e.Groups
	if e.Source != "" {
		event.SourceIPs = []string{e.Source}
	}
	l.process(event)
}

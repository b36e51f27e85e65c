// Package audit writes the audit log: which user changed, entered or read which object, and
// which user was denied.
//
// There are two files. The log itself contains the actions of identified users. A second, small
// file next to it contains requests without a valid credential. Any client that can reach a
// port can make such requests. They therefore use no space of the log, only a few of them are
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
	fileMegabytes, files                             = 64, 4
	unauthenticatedMegabytes, unauthenticatedBackups = 8, 1
)

// AnnotationNotRecorded contains the number of similar requests before an entry that were not
// recorded: those of the same address without a credential, or those denied to the same user.
const AnnotationNotRecorded = "rik.dev/not-recorded"

// Log is an audit log. A nil Log records nothing.
type Log struct {
	authenticated, unauthenticated *file
	toAuthenticated                audit.Backend
	toUnauthenticated              audit.Backend

	unauthenticatedLimit, deniedLimit *limiter
}

// Open creates a log that writes to path, and to the file next to it that UnauthenticatedFile names.
// The files are created at the first entry, with mode 0600.
func Open(path string) *Log {
	l := &Log{
		authenticated:        newFile(path, fileMegabytes, files),
		unauthenticated:      newFile(UnauthenticatedFile(path), unauthenticatedMegabytes, unauthenticatedBackups),
		unauthenticatedLimit: newLimiter(unauthenticatedRates, time.Now),
		deniedLimit:          newLimiter(deniedRates, time.Now),
	}
	l.toAuthenticated = auditlog.NewBackend(l.authenticated, auditlog.FormatJson, auditv1.SchemeGroupVersion)
	l.toUnauthenticated = auditlog.NewBackend(l.unauthenticated, auditlog.FormatJson, auditv1.SchemeGroupVersion)
	return l
}

// UnauthenticatedFile returns the file in which a log records the requests without a valid
// credential.
func UnauthenticatedFile(path string) string {
	extension := filepath.Ext(path)
	return strings.TrimSuffix(path, extension) + "-unauthenticated" + extension
}

// Policy makes the API server send all requests to the log, except those of the control plane
// itself. Whether a request is recorded is decided when its response is known: a denied read is
// recorded, and an ordinary one is not.
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
	return errors.Join(l.authenticated.Close(), l.unauthenticated.Close())
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
	case fromUnauthenticated:
		skipped, ok := l.unauthenticatedLimit.take(sourceOf(event))
		return !ok || l.toUnauthenticated.ProcessEvents(cut(event, unauthenticatedBounds, skipped))
	case denied:
		skipped, ok := l.deniedLimit.take(event.User.Username)
		return !ok || l.toAuthenticated.ProcessEvents(cut(event, knownBounds, skipped))
	case recorded:
		return l.toAuthenticated.ProcessEvents(cut(event, knownBounds, 0))
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

// Entry describes an action outside the API server, such as a node that joined.
type Entry struct {
	// Verb, Resource and Name describe the action, such as "join", "nodes", "n1".
	Verb, Resource, Name string
	// URI is that of the called service.
	URI string
	// User is the acting user. It is empty if the caller had no valid credential.
	User   string
	Groups []string
	// Source is the caller's address.
	Source string
	// Code is the corresponding HTTP status code. Message is the reason of a refusal.
	Code    int32
	Message string
	// Annotations are additional facts.
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

package audit

import (
	"net/http"
	"slices"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
)

// class says what becomes of an event.
type class int

const (
	dropped class = iota
	recorded
	denied
	fromStranger
)

// changes are the verbs of requests that change something. The last are those of requests
// beside the API's resources, and of entries that nodes cause.
var changes = []string{"create", "update", "patch", "delete", "deletecollection", "post", "put", "join", "renew"}

type groupResource struct{ group, resource string }

// housekeeping is written all the time and says nothing of anybody's intentions.
// Reviews of one's own rights are questions, which every user may ask without end.
var housekeeping = []groupResource{
	{"", "events"}, {"events.k8s.io", "events"}, {"coordination.k8s.io", "leases"},
	{"authorization.k8s.io", "selfsubjectaccessreviews"}, {"authorization.k8s.io", "selfsubjectrulesreviews"},
	{"authentication.k8s.io", "selfsubjectreviews"},
}

// sensitive are the subresources by which one enters an instance or reads what it says.
var sensitive = []string{"exec", "attach", "portforward", "log", "proxy"}

// sortOut decides about an event. The event has its answer's code already.
func sortOut(event *auditinternal.Event) class {
	code := int32(0)
	if event.ResponseStatus != nil {
		code = event.ResponseStatus.Code
	}
	switch {
	case isStranger(event) && (code == http.StatusUnauthorized || code == http.StatusForbidden || code == 0 || changesSomething(event)):
		return fromStranger
	case isStranger(event):
		return dropped // health checks
	case code == http.StatusForbidden, code == http.StatusUnauthorized, isEntry(event) && code >= http.StatusBadRequest:
		return denied
	case isHousekeeping(event.ObjectRef):
		return dropped
	case changesSomething(event), isSensitive(event.ObjectRef):
		return recorded
	default:
		return dropped
	}
}

// isStranger also holds for a request whose credential is not valid.
func isStranger(event *auditinternal.Event) bool {
	name := event.User.Username
	return name == "" || name == user.Anonymous || slices.Contains(event.User.Groups, user.AllUnauthenticated)
}

func changesSomething(event *auditinternal.Event) bool { return slices.Contains(changes, event.Verb) }

// isEntry says whether an event was made by Record.
func isEntry(event *auditinternal.Event) bool { return event.Verb == "join" || event.Verb == "renew" }

func isHousekeeping(ref *auditinternal.ObjectReference) bool {
	return ref != nil && slices.Contains(housekeeping, groupResource{ref.APIGroup, ref.Resource})
}

func isSensitive(ref *auditinternal.ObjectReference) bool {
	if ref == nil {
		return false
	}
	return ref.APIGroup == "" && ref.Resource == "secrets" || slices.Contains(sensitive, ref.Subresource)
}

// sourceOf is the address that the request came from. A client can forge all but the last.
func sourceOf(event *auditinternal.Event) string {
	if n := len(event.SourceIPs); n > 0 {
		return event.SourceIPs[n-1]
	}
	return ""
}

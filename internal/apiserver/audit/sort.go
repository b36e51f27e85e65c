package audit

import (
	"net/http"
	"net/url"
	"slices"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"

	"rik.dev/rik/internal/rpc/nodeimage"
)

// class is the treatment of an event.
type class int

const (
	dropped class = iota
	recorded
	denied
	fromUnauthenticated
)

// changes are the verbs of requests that change something. The last ones are those of requests
// outside the API's resources, and of entries that nodes cause.
var changes = []string{"create", "update", "patch", "delete", "deletecollection", "post", "put", "join", "renew"}

type groupResource struct{ group, resource string }

// housekeeping contains types that are written constantly and show no user's intentions.
// Reviews of a user's own permissions are questions, which every user may send without limit.
var housekeeping = []groupResource{
	{"", "events"}, {"events.k8s.io", "events"}, {"coordination.k8s.io", "leases"},
	{"authorization.k8s.io", "selfsubjectaccessreviews"}, {"authorization.k8s.io", "selfsubjectrulesreviews"},
	{"authentication.k8s.io", "selfsubjectreviews"},
}

// sensitive are the subresources with which users enter an instance or read its output.
var sensitive = []string{"exec", "attach", "portforward", "log", "proxy"}

// sortOut decides about an event. The event already contains the status code of the response.
func sortOut(event *auditinternal.Event) class {
	code := int32(0)
	if event.ResponseStatus != nil {
		code = event.ResponseStatus.Code
	}
	switch {
	case isUnauthenticated(event) && (code == http.StatusUnauthorized || code == http.StatusForbidden || code == 0 || changesSomething(event)):
		return fromUnauthenticated
	case isUnauthenticated(event):
		return dropped // health checks
	case code == http.StatusForbidden, code == http.StatusUnauthorized, isEntry(event) && code >= http.StatusBadRequest:
		return denied
	case isHousekeeping(event.ObjectRef):
		return dropped
	case changesSomething(event), isSensitive(event.ObjectRef), isExport(event):
		return recorded
	default:
		return dropped
	}
}

// isUnauthenticated reports whether a request has no valid credential.
func isUnauthenticated(event *auditinternal.Event) bool {
	name := event.User.Username
	return name == "" || name == user.Anonymous || slices.Contains(event.User.Groups, user.AllUnauthenticated)
}

func changesSomething(event *auditinternal.Event) bool { return slices.Contains(changes, event.Verb) }

// isEntry reports whether Record created an event.
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

// isExport reports whether a user reads an image of a node.
func isExport(event *auditinternal.Event) bool {
	if event.ObjectRef == nil || event.ObjectRef.Subresource != nodeimage.Subresource {
		return false
	}
	uri, err := url.ParseRequestURI(event.RequestURI)
	return err != nil || uri.Query().Has(nodeimage.ParamExport)
}

// sourceOf returns the address from which the request came. A client can forge all addresses
// except the last.
func sourceOf(event *auditinternal.Event) string {
	if n := len(event.SourceIPs); n > 0 {
		return event.SourceIPs[n-1]
	}
	return ""
}

package audit

import (
	"maps"
	"slices"
	"strconv"

	authnv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"

	"rik.dev/rik/internal/excerpt"
)

// bounds are the maximum sizes of a client's texts in an entry: bytes of a URI, bytes of any
// other text, and items of a list.
type bounds struct{ uri, text, list int }

var (
	knownBounds           = bounds{uri: 4096, text: 512, list: 16}
	unauthenticatedBounds = bounds{uri: 512, text: 128, list: 4}
)

const cutMark = "...(cut)"

// cut returns a copy of an event in which every part is bounded. It does not change the event,
// which belongs to the API server.
func cut(event *auditinternal.Event, b bounds, skipped int) *auditinternal.Event {
	e := *event
	e.AuditID = types.UID(b.short(string(e.AuditID)))
	e.RequestURI = shorten(e.RequestURI, b.uri)
	e.Verb, e.UserAgent = b.short(e.Verb), b.short(e.UserAgent)
	e.User = b.user(e.User)
	if e.ImpersonatedUser != nil {
		impersonated := b.user(*e.ImpersonatedUser)
		e.ImpersonatedUser = &impersonated
	}
	if e.AuthenticationMetadata != nil {
		e.AuthenticationMetadata = &auditinternal.AuthenticationMetadata{ImpersonationConstraint: b.short(e.AuthenticationMetadata.ImpersonationConstraint)}
	}
	// The last address is the one from which the request came.
	e.SourceIPs = b.texts(e.SourceIPs[max(0, len(e.SourceIPs)-b.list):])
	e.ObjectRef = b.reference(e.ObjectRef)
	e.ResponseStatus = b.status(e.ResponseStatus)
	e.RequestObject, e.ResponseObject = nil, nil
	e.Annotations = b.annotations(e.Annotations, skipped)
	return &e
}

func (b bounds) user(u authnv1.UserInfo) authnv1.UserInfo {
	out := authnv1.UserInfo{Username: b.short(u.Username), UID: b.short(u.UID), Groups: b.texts(u.Groups)}
	for _, key := range b.keys(slices.Sorted(maps.Keys(u.Extra))) {
		if out.Extra == nil {
			out.Extra = map[string]authnv1.ExtraValue{}
		}
		out.Extra[b.short(key)] = b.texts(u.Extra[key])
	}
	return out
}

func (b bounds) reference(r *auditinternal.ObjectReference) *auditinternal.ObjectReference {
	if r == nil {
		return nil
	}
	return &auditinternal.ObjectReference{
		Resource: b.short(r.Resource), Namespace: b.short(r.Namespace), Name: b.short(r.Name), UID: types.UID(b.short(string(r.UID))),
		APIGroup: b.short(r.APIGroup), APIVersion: b.short(r.APIVersion), ResourceVersion: b.short(r.ResourceVersion), Subresource: b.short(r.Subresource),
	}
}

// status omits the details, whose relevant parts are in the object's reference.
func (b bounds) status(s *metav1.Status) *metav1.Status {
	if s == nil {
		return nil
	}
	return &metav1.Status{Status: b.short(s.Status), Message: b.short(s.Message), Reason: metav1.StatusReason(b.short(string(s.Reason))), Code: s.Code}
}

func (b bounds) annotations(all map[string]string, skipped int) map[string]string {
	out := map[string]string{}
	for _, key := range b.keys(slices.Sorted(maps.Keys(all))) {
		out[b.short(key)] = b.short(all[key])
	}
	if skipped > 0 {
		out[AnnotationNotRecorded] = strconv.Itoa(skipped)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (b bounds) keys(sorted []string) []string { return sorted[:min(len(sorted), b.list)] }

func (b bounds) texts(list []string) []string {
	var out []string
	for _, text := range list[:min(len(list), b.list)] {
		out = append(out, b.short(text))
	}
	return out
}

func (b bounds) short(text string) string { return shorten(text, b.text) }

// shorten cuts a text to a number of bytes, at a character boundary.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	// The sum is a copy, so that the rest of the text does not stay in memory.
	return excerpt.Prefix(text, most-len(cutMark)) + cutMark
}

package controller

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/measurement"
	"rik.dev/rik/internal/rpc/schedulerv1"
	"rik.dev/rik/internal/rpc/usage"
)

// WhyPath is followed by <namespace>/<instance>. It and usage.Path must be mounted behind
// authorization.
const WhyPath = "/rik/why/"

// WhyHandler serves GET /rik/why/<namespace>/<instance>. The response is the scheduler's
// explanation of why the instance is on its node, or why it has none, as JSON.
func (c *Controller) WhyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, name, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, WhyPath), "/")
		if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
			refuse(w, http.StatusNotFound, "the path must be "+WhyPath+"<namespace>/<instance>")
			return
		}
		if !reads(w, r) {
			return
		}
		var in rikv1alpha1.Instance
		err := c.client.Get(r.Context(), types.NamespacedName{Namespace: namespace, Name: name}, &in)
		switch {
		case apierrors.IsNotFound(err):
			refuse(w, http.StatusNotFound, "instance "+namespace+"/"+name+" not found")
			return
		case err != nil:
			refuse(w, http.StatusServiceUnavailable, "reading the instance: "+err.Error())
			return
		}
		c.explain(w, r, string(in.UID))
	})
}

// explainTimeout bounds the wait for a scheduler that cannot be reached and whose machine does
// not refuse the connection.
const explainTimeout = 10 * time.Second

func (c *Controller) explain(w http.ResponseWriter, r *http.Request, uid string) {
	ctx, cancel := context.WithTimeout(r.Context(), explainTimeout)
	defer cancel()
	conn, err := c.config.SchedulerDial(ctx)
	if err != nil {
		c.withoutScheduler(w, err.Error())
		return
	}
	defer conn.Close()
	answer, err := schedulerv1.NewSchedulerClient(conn).Explain(ctx, &schedulerv1.ExplainRequest{Uid: uid})
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		refuse(w, http.StatusNotFound, "requesting the explanation from the scheduler: "+status.Convert(err).Message())
		return
	case codes.Unavailable, codes.DeadlineExceeded:
		c.withoutScheduler(w, status.Convert(err).Message())
		return
	default:
		refuse(w, http.StatusServiceUnavailable, "requesting the explanation from the scheduler: "+status.Convert(err).Message())
		return
	}
	body, err := protojson.MarshalOptions{UseProtoNames: false, EmitUnpopulated: true}.Marshal(answer)
	if err != nil {
		refuse(w, http.StatusInternalServerError, "encoding the explanation: "+err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(body) //nolint:errcheck // the reader is gone
}

// MetricsHandler serves GET /rik/metrics/nodes and /rik/metrics/instances. The response is a
// usage.List of the latest measurements of nodes that are or were connected to this server. The
// query parameter namespace restricts the instances to one namespace.
func (c *Controller) MetricsHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := strings.TrimPrefix(r.URL.Path, usage.Path)
		if what != "nodes" && what != "instances" {
			refuse(w, http.StatusNotFound, "the path must be "+usage.Path+"nodes or "+usage.Path+"instances")
			return
		}
		if !reads(w, r) {
			return
		}
		t := c.current()
		if t == nil {
			refuse(w, http.StatusServiceUnavailable, "this controller is not the active one")
			return
		}
		list := usage.List{Items: []usage.Item{}}
		if what == "nodes" {
			list.Items = append(list.Items, t.nodeUsage()...)
		} else {
			list.Items = append(list.Items, t.instanceUsage(r.URL.Query().Get("namespace"))...)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(list) //nolint:errcheck // the reader is gone
	})
}

func (t *term) nodeUsage() []usage.Item {
	var out []usage.Item
	for name, u := range t.controller.measured.Nodes() {
		if t.nodeView.Get(types.NamespacedName{Name: name}) != nil {
			out = append(out, measurement.Node(name, u))
		}
	}
	slices.SortFunc(out, func(a, b usage.Item) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (t *term) instanceUsage(namespace string) []usage.Item {
	var out []usage.Item
	for uid, u := range t.controller.measured.Instances() {
		in := t.instanceView.ByUID(uid)
		if in == nil || namespace != "" && in.Namespace != namespace {
			continue
		}
		var template *rikv1alpha1.InstanceTemplate
		if r := t.revisionView.Get(types.NamespacedName{Namespace: in.Namespace, Name: in.Spec.Revision}); r != nil {
			template = &r.Template
		}
		out = append(out, measurement.Instance(in, template, u))
	}
	slices.SortFunc(out, func(a, b usage.Item) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

func reads(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	refuse(w, http.StatusMethodNotAllowed, "only GET is allowed")
	return false
}

// withoutScheduler responds that the scheduler does not answer. The response includes the time since
// which no scheduler is connected, if this controller has that time.
func (c *Controller) withoutScheduler(w http.ResponseWriter, why string) {
	message := "the scheduler does not answer: " + why
	if t := c.current(); t != nil {
		if contact := t.nodes.Contact(); !contact.Connected {
			message = "no scheduler has been connected to the controller since " + contact.Since.UTC().Format(time.RFC3339) + ": " + why
		}
	}
	answer(w, &metav1.Status{
		Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: message,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: schedulerv1.CauseUnavailable, Message: why}}},
	})
}

var reasons = map[int]metav1.StatusReason{
	http.StatusNotFound:            metav1.StatusReasonNotFound,
	http.StatusMethodNotAllowed:    metav1.StatusReasonMethodNotAllowed,
	http.StatusInternalServerError: metav1.StatusReasonInternalError,
	http.StatusServiceUnavailable:  metav1.StatusReasonServiceUnavailable,
}

func refuse(w http.ResponseWriter, code int, message string) {
	answer(w, &metav1.Status{Code: int32(code), Reason: reasons[code], Message: message})
}

// answer writes an error in the API server's format, because clients show the message of no
// other format.
func answer(w http.ResponseWriter, s *metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	s.Status = metav1.StatusFailure
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	json.NewEncoder(w).Encode(s) //nolint:errcheck // the reader is gone
}

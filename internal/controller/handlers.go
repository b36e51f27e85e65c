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
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// Paths of the handlers. Both must be mounted behind authorization.
const (
	// WhyPath is followed by <namespace>/<instance>.
	WhyPath = "/rik/why/"
	// MetricsPath is followed by nodes or instances.
	MetricsPath = "/rik/metrics/"
)

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
	defer conn.Close() //nolint:errcheck // the answer is already here
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

// Usage is the current resource usage of a node or an instance. Numbers that were not reported
// are absent.
type Usage struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Node      string `json:"node,omitempty"`
	// CPUMillis is in thousandths of a core, MemoryBytes in bytes.
	CPUMillis   *int64 `json:"cpuMillis,omitempty"`
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`
	// CPUPercent and MemoryPercent are percentages of the machine's total.
	CPUPercent    *float64 `json:"cpuPercent,omitempty"`
	MemoryPercent *float64 `json:"memoryPercent,omitempty"`
	// VM holds counters of a microVM since its VMM was started.
	VM *VMUsage `json:"vm,omitempty"`
	// Raw is the JSON that the node sent, in the format of the RIK papers.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// VMUsage holds the counters of a microVM that the VMM and the node's kernel count. Counters
// that they do not count are 0. Network bytes are from the guest's point of view.
type VMUsage struct {
	VCPUNanos            uint64 `json:"vcpuNanos"`
	Exits                uint64 `json:"exits"`
	DiskReadBytes        uint64 `json:"diskReadBytes"`
	DiskWriteBytes       uint64 `json:"diskWriteBytes"`
	DiskReads            uint64 `json:"diskReads"`
	DiskWrites           uint64 `json:"diskWrites"`
	NetworkReceiveBytes  uint64 `json:"networkReceiveBytes"`
	NetworkTransmitBytes uint64 `json:"networkTransmitBytes"`
}

// UsageList is the response of the metrics handler.
type UsageList struct {
	Items []Usage `json:"items"`
}

// MetricsHandler serves GET /rik/metrics/nodes and /rik/metrics/instances. The response is a
// UsageList of the nodes' last measurements. The query parameter namespace restricts the
// instances to one namespace.
func (c *Controller) MetricsHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		what := strings.TrimPrefix(r.URL.Path, MetricsPath)
		if what != "nodes" && what != "instances" {
			refuse(w, http.StatusNotFound, "the path must be "+MetricsPath+"nodes or "+MetricsPath+"instances")
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
		list := UsageList{Items: []Usage{}}
		if what == "nodes" {
			list.Items = append(list.Items, t.nodeUsage()...)
		} else {
			list.Items = append(list.Items, t.instanceUsage(r.URL.Query().Get("namespace"))...)
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(list) //nolint:errcheck // the reader is gone
	})
}

func (t *term) nodeUsage() []Usage {
	texts, _ := t.nodes.Measurements()
	var out []Usage
	for name, text := range texts {
		u := parseUsage(text)
		u.Name, u.Node = name, name
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Usage) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (t *term) instanceUsage(namespace string) []Usage {
	_, texts := t.nodes.Measurements()
	var out []Usage
	for uid, text := range texts {
		in := t.instanceView.ByUID(uid)
		if in == nil || namespace != "" && in.Namespace != namespace {
			continue
		}
		u := parseUsage(text)
		u.Namespace, u.Name, u.Node = in.Namespace, in.Name, in.Spec.NodeName
		out = append(out, u)
	}
	slices.SortFunc(out, func(a, b Usage) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

// measured is the format of the RIK papers: usage in percent of a total. Instances add
// absolute numbers.
type measured struct {
	CPU *struct {
		Total *float64 `json:"totalCpu"`
		Usage *float64 `json:"currentUsage"`
	} `json:"cpu"`
	Memory *struct {
		Total *float64 `json:"totalMemory"`
		Usage *float64 `json:"currentUsage"`
	} `json:"memory"`
	CPUMillis   *int64   `json:"cpuMillis"`
	MemoryBytes *int64   `json:"memoryBytes"`
	VM          *VMUsage `json:"vm"`
}

// parseUsage parses a node's measurement. Malformed text gives an empty Usage.
func parseUsage(text string) Usage {
	var m measured
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return Usage{}
	}
	u := Usage{CPUMillis: m.CPUMillis, MemoryBytes: m.MemoryBytes, VM: m.VM, Raw: json.RawMessage(text)}
	if m.CPU != nil {
		u.CPUPercent = m.CPU.Usage
		if u.CPUMillis == nil {
			u.CPUMillis = share(m.CPU.Total, m.CPU.Usage, 1000)
		}
	}
	if m.Memory != nil {
		u.MemoryPercent = m.Memory.Usage
		if u.MemoryBytes == nil {
			u.MemoryBytes = share(m.Memory.Total, m.Memory.Usage, 1)
		}
	}
	return u
}

func share(total, percent *float64, unit float64) *int64 {
	if total == nil || percent == nil {
		return nil
	}
	n := int64(*total * unit * *percent / 100)
	return &n
}

func reads(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	refuse(w, http.StatusMethodNotAllowed, "only GET is allowed")
	return false
}

// withoutScheduler responds that the scheduler does not answer, and since when there is none,
// if this controller has that time.
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
	answer(w, &metav1.Status{Code: int32(code), Reason: reasons[code], Message: message}) //nolint:gosec // an HTTP status
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

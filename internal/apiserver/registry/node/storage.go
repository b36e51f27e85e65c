// Package node stores Nodes with their status.
package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/apiserver/registry/store"
)

// Storage serves nodes, their status and their images.
type Storage struct {
	Node   *store.REST
	Status *store.Status
	Images *Images
}

// Config connects nodes to the rest of the server.
type Config struct {
	// Sessions connect to the nodes, for their images. If it is nil, such requests are answered with
	// 503.
	Sessions instance.Sessions
	// Authorizer decides who may export images. If it is nil, no user may.
	Authorizer authorizer.Authorizer
}

// NewStorage creates the storage.
func NewStorage(getter generic.RESTOptionsGetter, c Config) (*Storage, error) {
	s, err := store.New(getter, store.Options[*rik.Node]{
		Plural: "nodes", Singular: "node",
		New:      func() runtime.Object { return &rik.Node{} },
		NewList:  func() runtime.Object { return &rik.NodeList{} },
		Strategy: strategy,
		Table:    table,
	})
	if err != nil {
		return nil, err
	}
	return &Storage{
		Node: &store.REST{Store: s, Short: []string{"no"}}, Status: store.NewStatus(s, statusStrategy),
		Images: &Images{nodes: s, sessions: c.Sessions, authorizer: c.Authorizer},
	}, nil
}

var strategy = store.NewStrategy(store.Rules[*rik.Node]{
	Create: func(ctx context.Context, n *rik.Node) {
		if !store.Trusted(ctx) {
			n.Status = rik.NodeStatus{}
		}
		n.Generation = 1
	},
	Update: func(_ context.Context, n, old *rik.Node) {
		n.Status = old.Status
		n.Generation = old.Generation
		if !apiequality.Semantic.DeepEqual(n.Spec, old.Spec) {
			n.Generation++
		}
	},
	ValidateCreate: func(_ context.Context, n *rik.Node) field.ErrorList {
		return append(validation.Node(n), validation.NodeStatus(n)...)
	},
	ValidateUpdate: func(_ context.Context, n, old *rik.Node) field.ErrorList { return validation.NodeUpdate(n, old) },
	Reset:          []string{"status"},
})

var statusStrategy = store.NewStrategy(store.Rules[*rik.Node]{
	Update: func(_ context.Context, n, old *rik.Node) {
		status, managed, version := n.Status, n.ManagedFields, n.ResourceVersion
		old.DeepCopyInto(n)
		n.Status, n.ManagedFields, n.ResourceVersion = status, managed, version
	},
	ValidateUpdate: func(_ context.Context, n, old *rik.Node) field.ErrorList { return validation.NodeStatusUpdate(n, old) },
	Reset:          []string{"spec", "metadata"},
})

var table = store.Table[*rik.Node]{
	Columns: []metav1.TableColumnDefinition{
		store.Name(),
		store.Column("Status", "string", "Whether it can run instances."),
		store.Column("Roles", "string", "Its roles, from labels."),
		store.Age(),
		store.Column("Version", "string", "Version of its agent."),
		store.Column("Internal-IP", "string", "Its address inside the cluster."),
		store.Wide("External-IP", "string", "Its address outside the cluster."),
		store.Wide("OS", "string", "Its distribution."),
		store.Wide("Kernel", "string", "Version of its kernel."),
		store.Wide("Runtime", "string", "Its default OCI runtime."),
		store.Wide("CPU", "string", "Cores that instances may reserve."),
		store.Wide("Memory", "string", "Memory that instances may reserve."),
	},
	Row: func(n *rik.Node, now time.Time) []any {
		i := &n.Status.Info
		return []any{
			n.Name, status(n), store.Or(strings.Join(roles(n.Labels), ",")), store.Since(n.CreationTimestamp, now), store.Or(i.AgentVersion),
			store.Or(i.InternalAddress), store.Or(i.ExternalAddress), store.Or(strings.TrimSpace(i.Distribution + " " + i.DistributionVersion)),
			store.Or(i.KernelVersion), store.Or(i.RuntimeVersion), amount(n, rik.ResourceCPU), amount(n, rik.ResourceMemory),
		}
	},
}

func status(n *rik.Node) string {
	out, paused, waits := "Unknown", false, false
	for _, c := range n.Status.Conditions {
		// The controller sets this condition on a lost node whose instances stay for now.
		paused = paused || c.Type == "ReplacementPaused" && c.Status == metav1.ConditionTrue
		waits = waits || c.Type == rikv1alpha1.NodeConfirmationNeeded && c.Status == metav1.ConditionTrue
		if c.Type != rik.NodeReady {
			continue
		}
		// A lost node is not ready either, because no instances are placed on it.
		out = "NotReady"
		if c.Status == metav1.ConditionTrue {
			out = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		out += ",SchedulingDisabled"
	}
	if paused {
		out += ",ReplacementPaused"
	}
	if waits {
		out += "," + rikv1alpha1.NodeConfirmationNeeded
	}
	return out
}

func roles(labels map[string]string) []string {
	var out []string
	for name := range labels {
		if role, ok := strings.CutPrefix(name, rikv1alpha1.LabelRolePrefix); ok && role != "" {
			out = append(out, role)
		}
	}
	slices.Sort(out)
	return out
}

func amount(n *rik.Node, name rik.ResourceName) string {
	q, ok := n.Status.Allocatable[name]
	if !ok {
		return "<none>"
	}
	if text := q.String(); !strings.HasSuffix(text, "Ki") || q.Value() < 100<<20 {
		return text
	}
	// The last digits of a node's value in Ki do not matter.
	return fmt.Sprintf("%dMi", q.Value()>>20)
}

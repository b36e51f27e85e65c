package describe

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	kubecmd "k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/describe"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/workloadkind"
)

// NewCommand is kubectl's describe, with describers for rik's own types.
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	flags := kubecmd.NewDescribeFlags(t.Kube, t.Streams)
	cmd := &cobra.Command{
		Use:   "describe TYPE NAME | TYPE/NAME | -f FILE",
		Short: "Show an object in detail, with its events",
		Long:  "Show objects in detail: their spec, status, conditions and events.",
		Example: cmdline.Example(`
rikctl describe workload web
rikctl describe instance web-x7k2p
rikctl describe app nginx
rikctl describe node worker-1`),
		ValidArgsFunction: completion.ResourceTypeAndNameCompletionFunc(t.Kube),
		RunE: func(cmd *cobra.Command, given []string) error {
			given, err := t.describedOfKind(cmd, given)
			if err != nil || given == nil {
				return err
			}
			o, err := flags.ToOptions(cmdline.Program, given)
			if err != nil {
				return err
			}
			o.Describer = t.describer
			return o.Run()
		},
	}
	flags.AddFlags(cmd)
	return cmd
}

// describedOfKind converts "app NAME" and "functions" to workloads. It returns other arguments
// unchanged. The result is nil if no object matches; the user has then seen a message.
func (t *tool) describedOfKind(cmd *cobra.Command, given []string) ([]string, error) {
	kind, names, ok := workloadkind.Parse(given)
	if !ok {
		return append([]string{}, given...), nil
	}
	for _, other := range []string{"all-namespaces", "selector", "filename"} {
		if cmd.Flags().Changed(other) {
			return nil, cmdline.Errorf(cmd, "--%s is not available for %s; use \"%s describe workloads\"", other, workloadkind.Plural(kind), cmdline.Program)
		}
	}
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return nil, err
	}
	found, err := workloadkind.Find(cmd.Context(), c, kind, names, client.InNamespace(namespace))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		_, _ = fmt.Fprintf(t.Streams.ErrOut, "No %s found.\n", workloadkind.Plural(kind))
		return nil, nil
	}
	workloads := []string{"workloads"}
	for i := range found {
		workloads = append(workloads, found[i].Name)
	}
	return workloads, nil
}

func (t *tool) describer(mapping *meta.RESTMapping) (describe.ResourceDescriber, error) {
	render, ours := renderers[mapping.GroupVersionKind.Kind]
	groups := []string{rikv1alpha1.GroupName, workloadv1alpha1.GroupName}
	if !slices.Contains(groups, mapping.GroupVersionKind.Group) || !ours {
		return describe.Describer(t.Getter, mapping)
	}
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	return describerOf{c, render}, nil
}

// details holds the related objects that a description needs.
type details struct {
	// instances of a workload or on a node; nil for other objects
	instances []rikv1alpha1.Instance
	// template is what an instance runs; nil if its revision is gone.
	template *rikv1alpha1.InstanceTemplate
	// events is nil if the user did not request events or may not read them.
	events       *corev1.EventList
	eventsHidden bool
}

// renderer describes objects of one kind. empty returns an empty object, gather reads its
// related objects, and write is pure.
type renderer struct {
	empty  func() client.Object
	gather func(ctx context.Context, c client.Client, obj client.Object, d *details) error
	write  func(w describe.PrefixWriter, obj client.Object, d *details)
}

var renderers = map[string]renderer{
	"Workload": {
		func() client.Object { return &rikv1alpha1.Workload{} }, gatherWorkload,
		func(w describe.PrefixWriter, obj client.Object, d *details) {
			writeWorkload(w, obj.(*rikv1alpha1.Workload), d)
		},
	},
	"Instance": {
		func() client.Object { return &rikv1alpha1.Instance{} }, gatherInstance,
		func(w describe.PrefixWriter, obj client.Object, d *details) {
			writeInstance(w, obj.(*rikv1alpha1.Instance), d)
		},
	},
	"Node": {
		func() client.Object { return &rikv1alpha1.Node{} }, gatherNode,
		func(w describe.PrefixWriter, obj client.Object, d *details) { writeNode(w, obj.(*rikv1alpha1.Node), d) },
	},
	"Tenant": {
		func() client.Object { return &rikv1alpha1.Tenant{} },
		func(context.Context, client.Client, client.Object, *details) error { return nil },
		func(w describe.PrefixWriter, obj client.Object, d *details) {
			writeTenant(w, obj.(*rikv1alpha1.Tenant), d)
		},
	},
	"Cluster": {
		func() client.Object { return &workloadv1alpha1.Cluster{} },
		func(context.Context, client.Client, client.Object, *details) error { return nil },
		func(w describe.PrefixWriter, obj client.Object, _ *details) {
			writeCluster(w, obj.(*workloadv1alpha1.Cluster))
		},
	},
}

type describerOf struct {
	c client.Client
	r renderer
}

// Describe implements describe.ResourceDescriber, which has no context.
func (d describerOf) Describe(namespace, name string, settings describe.DescriberSettings) (string, error) {
	ctx := context.Background()
	obj := d.r.empty()
	if err := d.c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, obj); err != nil {
		return "", err
	}
	var found details
	if err := d.r.gather(ctx, d.c, obj, &found); err != nil {
		return "", err
	}
	if settings.ShowEvents {
		// The events of an object without a namespace may be in any namespace.
		found.events = &corev1.EventList{}
		err := d.c.List(ctx, found.events, client.InNamespace(namespace), client.MatchingFields{"involvedObject.uid": string(obj.GetUID())})
		if apierrors.IsForbidden(err) {
			found.events, found.eventsHidden = nil, true
		} else if err != nil {
			return "", err
		}
	}
	return rendered(d.r, obj, &found)
}

func rendered(r renderer, obj client.Object, d *details) (string, error) {
	var out bytes.Buffer
	// kubectl's table writer keeps the widths of columns after a flush.
	table := tabwriter.NewWriter(&out, 6, 4, 3, ' ', 0)
	w := escapingWriter{describe.NewPrefixWriter(table)}
	r.write(w, obj, d)
	if d.events != nil {
		describe.DescribeEvents(d.events, w)
	}
	if d.eventsHidden {
		w.Write(describe.LEVEL_0, "Events:\tnot shown: you have no permission to list events here\n")
	}
	err := table.Flush()
	return out.String(), err
}

func gatherWorkload(ctx context.Context, c client.Client, obj client.Object, d *details) error {
	all, err := target.InstancesOf(ctx, c, obj.(*rikv1alpha1.Workload))
	d.instances = sorted(all)
	return err
}

func gatherNode(ctx context.Context, c client.Client, obj client.Object, d *details) error {
	list := &rikv1alpha1.InstanceList{}
	err := c.List(ctx, list, client.MatchingFields{"spec.nodeName": obj.GetName()})
	d.instances = sorted(list.Items)
	return err
}

// gatherInstance reads the template that the instance runs. The instance itself holds only the
// name of its revision.
func gatherInstance(ctx context.Context, c client.Client, obj client.Object, d *details) error {
	i := obj.(*rikv1alpha1.Instance)
	if i.Spec.Revision == "" {
		return nil
	}
	r := &rikv1alpha1.WorkloadRevision{}
	err := c.Get(ctx, client.ObjectKey{Namespace: i.Namespace, Name: i.Spec.Revision}, r)
	if err == nil {
		d.template = &r.Template
	}
	return client.IgnoreNotFound(err)
}

func sorted(instances []rikv1alpha1.Instance) []rikv1alpha1.Instance {
	slices.SortFunc(instances, func(a, b rikv1alpha1.Instance) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return instances
}

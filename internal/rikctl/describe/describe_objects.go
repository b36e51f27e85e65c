package describe

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/describe"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
)

func writeMeta(w describe.PrefixWriter, m *metav1.ObjectMeta) {
	printer.Field(w, 0, "Name", m.Name)
	printer.Optional(w, 0, "Namespace", m.Namespace)
	printer.Field(w, 0, "ID", string(m.UID))
	writeMap(w, 0, "Labels", m.Labels)
	writeMap(w, 0, "Annotations", m.Annotations)
	printer.Field(w, 0, "Created", moment(&m.CreationTimestamp))
	if m.DeletionTimestamp != nil {
		printer.Field(w, 0, "Deleted", moment(m.DeletionTimestamp)+", waiting for "+strings.Join(m.Finalizers, ", "))
	}
}

func writeMap(w describe.PrefixWriter, level int, name string, m map[string]string) {
	if len(m) == 0 {
		printer.Field(w, level, name, "")
		return
	}
	label := name + ":"
	for _, key := range slices.Sorted(maps.Keys(m)) {
		w.Write(level, "%s\t%s=%s\n", label, key, m[key])
		label = ""
	}
}

func moment(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func writeConditions(w describe.PrefixWriter, conditions []metav1.Condition) {
	if len(conditions) == 0 {
		return
	}
	w.Flush() // end the table, so that the next one has columns of its own width
	defer w.Flush()
	w.Write(0, "Conditions:\n")
	w.Write(1, "Type\tStatus\tSince\tReason\tMessage\n")
	for i := range conditions {
		c := &conditions[i]
		w.Write(1, "%s\t%s\t%s\t%s\t%s\n", c.Type, c.Status, moment(&c.LastTransitionTime), c.Reason, c.Message)
	}
}

func writeWorkload(w describe.PrefixWriter, o *rikv1alpha1.Workload, d *details) {
	writeMeta(w, &o.ObjectMeta)
	printer.Field(w, 0, "Kind", o.Spec.Kind)
	printer.Field(w, 0, "Deploy", o.Spec.Deploy)
	if o.Spec.Deploy == rikv1alpha1.DeployAutomatic {
		writeAutomatic(w, &o.Spec)
	}
	s := &o.Status
	printer.Field(w, 0, "Instances", fmt.Sprintf("%d, of them %d ready, %d of the newest revision, %d pending, %d failed, %d completed",
		s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.PendingReplicas, s.FailedReplicas, s.CompletedReplicas))
	printer.Field(w, 0, "Revision", s.CurrentRevision)
	printer.Optional(w, 0, "Addresses", strings.Join(s.Addresses, ", "))
	writeTemplate(w, &o.Spec.InstanceTemplate, nil)
	writeConditions(w, s.Conditions)
	writeInstances(w, d.instances, func(i *rikv1alpha1.Instance) string { return i.Spec.NodeName }, "Node")
}

func writeAutomatic(w describe.PrefixWriter, s *rikv1alpha1.WorkloadSpec) {
	if s.Replicas != nil {
		printer.Field(w, 0, "Replicas", *s.Replicas)
	}
	strategy := string(s.Strategy.Type)
	if s.Strategy.MaxSurge != nil {
		strategy += ", at most " + s.Strategy.MaxSurge.String() + " more"
	}
	if s.Strategy.MaxUnavailable != nil {
		strategy += ", at most " + s.Strategy.MaxUnavailable.String() + " unavailable"
	}
	printer.Optional(w, 0, "Strategy", strategy)
	if s.Paused {
		printer.Field(w, 0, "Paused", "yes")
	}
}

func writeInstances(w describe.PrefixWriter, instances []rikv1alpha1.Instance, third func(*rikv1alpha1.Instance) string, heading string) {
	if len(instances) == 0 {
		w.Write(0, "Instances:\t<none>\n")
		return
	}
	w.Flush()
	defer w.Flush()
	w.Write(0, "Instances:\n")
	w.Write(1, "Name\tStatus\t%s\tMessage\n", heading)
	for n := range instances {
		i := &instances[n]
		w.Write(1, "%s\t%s\t%s\t%s\n", i.Name, statusOf(i), cmp.Or(third(i), "<none>"), i.Status.Message)
	}
}

// statusOf returns the phase, with the reason if there is one.
func statusOf(i *rikv1alpha1.Instance) string {
	if i.Status.Reason == "" {
		return string(target.PhaseOf(i))
	}
	return fmt.Sprintf("%s (%s)", target.PhaseOf(i), i.Status.Reason)
}

func writeInstance(w describe.PrefixWriter, i *rikv1alpha1.Instance, d *details) {
	writeMeta(w, &i.ObjectMeta)
	printer.Field(w, 0, "Workload", i.Spec.Workload)
	printer.Field(w, 0, "Revision", i.Spec.Revision)
	printer.Optional(w, 0, "Replaces", i.Spec.Replaces)
	printer.Field(w, 0, "Node", strings.TrimSuffix(i.Spec.NodeName+"/"+i.Status.HostAddress, "/"))
	printer.Field(w, 0, "Status", statusOf(i))
	printer.Optional(w, 0, "Message", i.Status.Message)
	printer.Field(w, 0, "Ready", yes(i.Status.Ready))
	printer.Optional(w, 0, "Address", i.Status.Address)
	if len(i.Status.HostPorts) > 0 {
		printer.Field(w, 0, "Host Ports", strings.Trim(fmt.Sprint(i.Status.HostPorts), "[]"))
	}
	printer.Optional(w, 0, "Started", moment(i.Status.StartedAt))
	printer.Optional(w, 0, "Finished", moment(i.Status.FinishedAt))
	template := d.template
	if template == nil {
		template = &rikv1alpha1.InstanceTemplate{}
	}
	writeTemplate(w, template, i)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func writeNode(w describe.PrefixWriter, n *rikv1alpha1.Node, d *details) {
	writeMeta(w, &n.ObjectMeta)
	printer.Field(w, 0, "Unschedulable", yes(n.Spec.Unschedulable))
	taints := []string{}
	for i := range n.Spec.Taints {
		taints = append(taints, n.Spec.Taints[i].Text())
	}
	printer.Field(w, 0, "Taints", strings.Join(taints, ", "))
	printer.Optional(w, 0, "Pod CIDR", n.Spec.PodCIDR)
	f := &n.Status.Info
	w.Write(0, "System:\n")
	printer.Field(w, 1, "Host", strings.TrimSpace(f.Hostname+" "+f.InternalAddress+" "+f.ExternalAddress))
	printer.Field(w, 1, "Machine ID", f.MachineID)
	printer.Field(w, 1, "Boot ID", f.BootID)
	printer.Field(w, 1, "System", strings.TrimSpace(fmt.Sprintf("%s %s, %s/%s", f.Distribution, f.DistributionVersion, f.OperatingSystem, f.Architecture)))
	printer.Field(w, 1, "Kernel", f.KernelVersion)
	printer.Field(w, 1, "Agent", f.AgentVersion)
	printer.Field(w, 1, "Runtime", f.RuntimeVersion)
	printer.Field(w, 1, "CPUs", f.CPUs)
	printer.Field(w, 1, "Memory", bytesText(f.MemoryBytes))
	printer.Field(w, 1, "Disk", bytesText(f.DiskBytes))
	printer.Field(w, 1, "Kinds", strings.Trim(fmt.Sprint(f.Kinds), "[]"))
	writeAmounts(w, "Capacity", n.Status.Capacity)
	writeAmounts(w, "Allocatable", n.Status.Allocatable)
	writeConditions(w, n.Status.Conditions)
	writeInstances(w, d.instances, func(i *rikv1alpha1.Instance) string { return i.Namespace }, "Namespace")
}

func writeAmounts(w describe.PrefixWriter, name string, amounts rikv1alpha1.ResourceList) {
	printer.Field(w, 0, name, amountsText(amounts))
}

func amountsText(amounts rikv1alpha1.ResourceList) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(amounts)) {
		words = append(words, fmt.Sprintf("%s=%s", key, amountText(amounts[key])))
	}
	return strings.Join(words, " ")
}

// bytesText formats a number of bytes with a precision of 1 MiB.
func bytesText(n int64) string { return resource.NewQuantity(n>>20<<20, resource.BinarySI).String() }

// amountText rounds an amount that a node measured in Ki.
func amountText(q resource.Quantity) string {
	if text := q.String(); !strings.HasSuffix(text, "Ki") || q.Value() < 100<<20 {
		return text
	}
	return printer.Mebibytes(q.Value())
}

func writeTenant(w describe.PrefixWriter, t *rikv1alpha1.Tenant, _ *details) {
	writeMeta(w, &t.ObjectMeta)
	printer.Field(w, 0, "Namespace", t.Status.Namespace)
	printer.Field(w, 0, "Instances", t.Status.Instances)
	printer.Optional(w, 0, "Value", t.Spec.Value)
	if len(t.Spec.Users) == 0 {
		printer.Field(w, 0, "Users", "")
	} else {
		w.Write(0, "Users:\n")
		w.Write(1, "Name\tVerbs\tResources\n")
		for _, u := range t.Spec.Users {
			w.Write(1, "%s\t%s\t%s\n", u.Name, all(u.Verbs), all(u.Resources))
		}
	}
	writeConditions(w, t.Status.Conditions)
}

// all joins words; an empty list means all of them and becomes "*".
func all(words []string) string {
	if len(words) == 0 {
		return "*"
	}
	return strings.Join(words, ",")
}

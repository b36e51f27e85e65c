package demo

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// The label of the demo's Workload.
const (
	labelKey   = "app.kubernetes.io/managed-by"
	labelValue = "rik-demo"
)

// listenPort is the port of the program in its instance.
const listenPort = 8080

// Machine identifies this machine among the nodes of a cluster.
type Machine struct {
	// NodeName is the name that its node has by default, or by the flags of its server.
	NodeName string
	// ID is the content of /etc/machine-id; empty if there is none.
	ID string
}

// node returns the name of this machine's node, or an error if it cannot run new instances.
func (m Machine) node(nodes []rikv1alpha1.Node) (string, error) {
	at := slices.IndexFunc(nodes, func(n rikv1alpha1.Node) bool { return n.Name == m.NodeName })
	if at < 0 && m.ID != "" {
		at = slices.IndexFunc(nodes, func(n rikv1alpha1.Node) bool { return n.Status.Info.MachineID == m.ID })
	}
	if at < 0 {
		return "", m.missing(nodes)
	}
	node := &nodes[at]
	ready := meta.FindStatusCondition(node.Status.Conditions, rikv1alpha1.NodeReady)
	switch {
	case ready == nil:
		return "", fmt.Errorf("node %s has not reported yet", node.Name)
	case ready.Status != metav1.ConditionTrue:
		return "", fmt.Errorf("node %s is not ready: %s", node.Name, because(ready.Reason, ready.Message))
	case node.Spec.Unschedulable:
		return "", fmt.Errorf("node %s takes no new instances, because it is cordoned: rikctl uncordon %s", node.Name, node.Name)
	}
	return node.Name, nil
}

// missing is the error for a cluster in which this machine is no node.
func (m Machine) missing(nodes []rikv1alpha1.Node) error {
	if len(nodes) == 0 {
		return errors.New("the cluster has no node: is its server started with --no-agent?")
	}
	var names []string
	for i := range nodes {
		names = append(names, nodes[i].Name)
	}
	return fmt.Errorf("this machine (%s) is not a node of the cluster, which has %s: is its server started with --no-agent?", m.NodeName, strings.Join(names, ", "))
}

// workload returns the sample application.
func (d *Demo) workload(image, node string) *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: d.Name, Labels: map[string]string{labelKey: labelValue}},
		Spec: rikv1alpha1.WorkloadSpec{
			Deploy:   rikv1alpha1.DeployAutomatic,
			Replicas: &d.Replicas,
			InstanceTemplate: rikv1alpha1.InstanceTemplate{
				// Other nodes do not have the image.
				NodeSelector: map[string]string{rikv1alpha1.LabelHostname: node},
				Containers: []rikv1alpha1.Container{{
					Name:  "web",
					Image: image,
					Args:  []string{"-listen", fmt.Sprintf(":%d", listenPort)},
					Ports: []rikv1alpha1.Port{{Name: "http", Port: d.Port, TargetPort: listenPort, Protocol: rikv1alpha1.ProtocolTCP, Type: rikv1alpha1.PortNodePort}},
					Resources: rikv1alpha1.Resources{
						Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("10m"), rikv1alpha1.ResourceMemory: resource.MustParse("16Mi")},
						Limits:   rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: resource.MustParse("64Mi")},
					},
					ReadinessProbe: &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: listenPort}, PeriodSeconds: 1},
				}},
			},
		},
	}
}

// portOf returns the node port of a Workload, or 0.
func portOf(w *rikv1alpha1.Workload) int32 {
	for _, c := range w.Spec.Containers {
		for _, p := range c.Ports {
			if p.Type == rikv1alpha1.PortNodePort {
				return p.Port
			}
		}
	}
	return 0
}

// stateOf describes the state of an instance.
func stateOf(i *rikv1alpha1.Instance) string {
	s := &i.Status
	switch {
	case s.Phase == "":
		return "new"
	case s.Phase == rikv1alpha1.InstanceRunning && s.Ready:
		return "Running, ready"
	case s.Phase == rikv1alpha1.InstanceRunning && s.Reason == "":
		return "Running, not ready yet"
	case s.Reason == "" && s.Message == "":
		return string(s.Phase)
	}
	return string(s.Phase) + ": " + because(s.Reason, s.Message)
}

// explain lists the states of instances, each with the next step.
func explain(instances []rikv1alpha1.Instance) string {
	if len(instances) == 0 {
		return "the workload has no instances"
	}
	var lines []string
	for i := range instances {
		name := instances[i].Name
		lines = append(lines, fmt.Sprintf("instance %s is %s; see: rikctl why %s", name, stateOf(&instances[i]), name))
	}
	return strings.Join(lines, "\n")
}

// because joins a reason and a message, of which either may be empty.
func because(reason, message string) string {
	switch {
	case message == "":
		return reason
	case reason == "":
		return message
	}
	return reason + ": " + message
}

package splitter

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"rik.dev/rik/internal/multicluster/terminal"
)

// defaultTerminationGrace is the default of pods in Kubernetes.
const defaultTerminationGrace = 30 * time.Second

// maxGraceSeconds is a hundred years. The sum of it and any time is still a valid time.
const maxGraceSeconds = 100 * 365 * 24 * 60 * 60

// ReadRoot reads a [Root] from its object. A root that does not set its replicas has one, as
// everywhere in Kubernetes.
func ReadRoot(root *unstructured.Unstructured, path ScalePath) Root {
	out := Root{Name: root.GetName(), Replicas: int32At(root, 1, path.spec()), TerminationGrace: defaultTerminationGrace}
	_, out.Finished = terminal.Of(root)
	for _, path := range templates {
		var pod corev1.PodTemplateSpec
		template, found, err := unstructured.NestedMap(root.Object, path...)
		if err != nil || !found || convert(template, &pod) != nil {
			continue
		}
		out.Requests = requestsOf(&pod.Spec)
		if grace := pod.Spec.TerminationGracePeriodSeconds; grace != nil {
			out.TerminationGrace = time.Duration(min(max(*grace, 0), maxGraceSeconds)) * time.Second
		}
	}
	return out
}

// requestsOf returns the resources that one pod needs. It is the sum of the containers that run
// at the same time, or the request of an init container if that is higher.
func requestsOf(pod *corev1.PodSpec) corev1.ResourceList {
	together, before := corev1.ResourceList{}, corev1.ResourceList{}
	for _, c := range pod.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			addAll(together, c.Resources.Requests)
			continue
		}
		for name, q := range c.Resources.Requests {
			sum := together[name].DeepCopy()
			sum.Add(q)
			atLeast(before, name, sum)
		}
	}
	for _, c := range pod.Containers {
		addAll(together, c.Resources.Requests)
	}
	for name, q := range before {
		atLeast(together, name, q)
	}
	addAll(together, pod.Overhead)
	if len(together) == 0 {
		return nil
	}
	return together
}

func addAll(list, more corev1.ResourceList) {
	for name, q := range more {
		sum := list[name].DeepCopy()
		sum.Add(q)
		list[name] = sum
	}
}

func atLeast(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) {
	if have, ok := list[name]; !ok || have.Cmp(q) < 0 {
		list[name] = q
	}
}

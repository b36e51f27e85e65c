package deployment

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validatePod validates fields that depend on other fields.
func validatePod(d *appsv1.Deployment, at *field.Path) field.ErrorList {
	pod := &d.Spec.Template.Spec
	errs := validateAccount(pod, at)
	if pod.OS != nil && pod.OS.Name != corev1.Linux {
		errs = append(errs, field.Forbidden(at.Child("os", "name"), "containers run on Linux"))
	}
	for i := range pod.Containers {
		errs = append(errs, validateContainer(&pod.Containers[i], pod, at.Child("containers").Index(i))...)
	}
	for i := range pod.InitContainers {
		errs = append(errs, validateContainer(&pod.InitContainers[i], pod, at.Child("initContainers").Index(i))...)
	}
	for i := range pod.TopologySpreadConstraints {
		s := &pod.TopologySpreadConstraints[i]
		if !equality.Semantic.DeepEqual(s.LabelSelector, d.Spec.Selector) {
			errs = append(errs, field.Forbidden(at.Child("topologySpreadConstraints").Index(i).Child("labelSelector"),
				"rik spreads only the Deployment's own replicas: use the labels of spec.selector"))
		}
	}
	return append(errs, validateAffinity(pod.Affinity, at.Child("affinity"))...)
}

// validateAccount rejects a service account, because instances get no token of it. It accepts a
// name if automountServiceAccountToken is false.
func validateAccount(pod *corev1.PodSpec, at *field.Path) field.ErrorList {
	mount := pod.AutomountServiceAccountToken
	switch {
	case isTrue(mount):
		return field.ErrorList{field.Forbidden(at.Child("automountServiceAccountToken"), noAccount)}
	case mount != nil, pod.ServiceAccountName == "", pod.ServiceAccountName == "default":
		return nil
	}
	return field.ErrorList{field.Forbidden(at.Child("serviceAccountName"), noAccount)}
}

func validateContainer(c *corev1.Container, pod *corev1.PodSpec, at *field.Path) field.ErrorList {
	errs := validateUser(c, pod, at.Child("securityContext"))
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			errs = append(errs, validateFieldRef(from.FieldRef, at.Child("env").Index(i).Child("valueFrom", "fieldRef"))...)
		}
	}
	errs = append(errs, validateResources(c.Resources.Requests, at.Child("resources", "requests"), true)...)
	errs = append(errs, validateResources(c.Resources.Limits, at.Child("resources", "limits"), false)...)
	for name, p := range map[string]*corev1.Probe{"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe} {
		if p != nil {
			errs = append(errs, validateProbe(p, c.Ports, at.Child(name))...)
		}
	}
	return errs
}

// validateUser requires that the settings of a security context about users do not depend on the
// image.
func validateUser(c *corev1.Container, pod *corev1.PodSpec, at *field.Path) field.ErrorList {
	var own corev1.SecurityContext
	if c.SecurityContext != nil {
		own = *c.SecurityContext
	}
	if p := pod.SecurityContext; p != nil {
		own.RunAsUser = first(own.RunAsUser, p.RunAsUser)
		own.RunAsGroup = first(own.RunAsGroup, p.RunAsGroup)
	}
	var errs field.ErrorList
	if own.RunAsGroup != nil && own.RunAsUser == nil {
		errs = append(errs, field.Forbidden(at.Child("runAsGroup"), "a group requires a user: set runAsUser too"))
	}
	if isTrue(own.AllowPrivilegeEscalation) && !isTrue(own.Privileged) {
		errs = append(errs, field.Forbidden(at.Child("allowPrivilegeEscalation"), "processes never gain privileges: leave it out or set false"))
	}
	return errs
}

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

func validateFieldRef(r *corev1.ObjectFieldSelector, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.APIVersion != "" && r.APIVersion != "v1" {
		errs = append(errs, field.NotSupported(at.Child("apiVersion"), r.APIVersion, []string{"v1"}))
	}
	if _, known := fieldPaths[r.FieldPath]; !known {
		errs = append(errs, field.NotSupported(at.Child("fieldPath"), r.FieldPath, sets.List(sets.KeySet(fieldPaths))))
	}
	return errs
}

func validateResources(list corev1.ResourceList, at *field.Path, requests bool) field.ErrorList {
	var errs field.ErrorList
	for _, name := range sets.List(sets.KeySet(list)) {
		_, known := resourceNames[name]
		if !known || name == corev1.ResourceEphemeralStorage && !requests {
			errs = append(errs, field.Forbidden(at.Key(string(name)), "containers can have cpu and memory, and ephemeral-storage as a request"))
		}
	}
	return errs
}

func validateProbe(p *corev1.Probe, named []corev1.ContainerPort, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := func(port intstr.IntOrString, at *field.Path) {
		if _, ok := portNumber(port, named); !ok {
			errs = append(errs, field.NotFound(at, port.String()))
		}
	}
	if s := p.TCPSocket; s != nil {
		known(s.Port, at.Child("tcpSocket", "port"))
	}
	if h := p.HTTPGet; h != nil {
		known(h.Port, at.Child("httpGet", "port"))
		seen := map[string]bool{}
		for i, header := range h.HTTPHeaders {
			if name := strings.ToLower(header.Name); seen[name] {
				errs = append(errs, field.Duplicate(at.Child("httpGet", "httpHeaders").Index(i).Child("name"), header.Name))
			}
			seen[strings.ToLower(header.Name)] = true
		}
	}
	return errs
}

var nodeOperators = []corev1.NodeSelectorOperator{
	corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
}

func validateAffinity(a *corev1.Affinity, at *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	if n := a.NodeAffinity; n != nil {
		here := at.Child("nodeAffinity")
		if required := n.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
			for i := range required.NodeSelectorTerms {
				errs = append(errs, validateNodeTerm(&required.NodeSelectorTerms[i], here.Child(mustBe, "nodeSelectorTerms").Index(i))...)
			}
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			errs = append(errs, validateNodeTerm(&n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference,
				here.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("preference"))...)
		}
	}
	if p := a.PodAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity", mustBe))...)
	}
	if p := a.PodAntiAffinity; p != nil {
		errs = append(errs, validatePodTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, at.Child("podAntiAffinity", mustBe))...)
	}
	return errs
}

// mustBe is the field of Kubernetes with the required terms.
const mustBe = "requiredDuringSchedulingIgnoredDuringExecution"

func validateNodeTerm(t *corev1.NodeSelectorTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, e := range t.MatchExpressions {
		if !slices.Contains(nodeOperators, e.Operator) {
			errs = append(errs, field.NotSupported(at.Child("matchExpressions").Index(i).Child("operator"), e.Operator, nodeOperators))
		}
	}
	return errs
}

// validatePodTerms requires a selector. Without one, a term selects no pods in Kubernetes, and all
// instances in rik.
func validatePodTerms(terms []corev1.PodAffinityTerm, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range terms {
		if terms[i].LabelSelector == nil {
			errs = append(errs, field.Required(at.Index(i).Child("labelSelector"), "a term without a selector selects nothing; {} selects all instances"))
		}
	}
	return errs
}

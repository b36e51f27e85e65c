package splitter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Need is a core/v1 object in the same namespace to which another object refers by name.
type Need struct {
	Kind, Name string
	// Optional is true if the object may be missing.
	Optional bool
}

// The kinds of needs.
const (
	KindConfigMap      = "ConfigMap"
	KindSecret         = "Secret"
	KindServiceAccount = "ServiceAccount"
	KindClaim          = "PersistentVolumeClaim"
	KindService        = "Service"
)

// Needs returns the objects to which an object refers, sorted and without duplicates:
//
//   - the objects that the pods of a workload read, mount or run as
//   - the Service of a StatefulSet
//   - the Services and Secrets of an Ingress
//   - the Secrets of a ServiceAccount
//
// Needs leaves out objects that every namespace of every cluster has: the default ServiceAccount
// and the root certificates.
func Needs(object *unstructured.Unstructured) ([]Need, error) {
	var n needs
	switch object.GroupVersionKind().GroupKind().String() {
	case "Ingress.networking.k8s.io":
		if err := n.ofIngress(object); err != nil {
			return nil, err
		}
	case KindServiceAccount:
		var account corev1.ServiceAccount
		if err := convert(object.Object, &account); err != nil {
			return nil, err
		}
		n.references(account.ImagePullSecrets)
	}
	for _, path := range templates {
		template, found, err := unstructured.NestedMap(object.Object, path...)
		if err != nil || !found || template["spec"] == nil {
			continue
		}
		var pod corev1.PodTemplateSpec
		err = convert(template, &pod)
		if err != nil && !slices.Contains(podGroups, object.GroupVersionKind().Group) {
			continue // in other types, a template need not describe pods
		}
		if err != nil {
			return nil, fmt.Errorf("reading %s of %s: %w", strings.Join(path, "."), object.GetName(), err)
		}
		n.ofPod(&pod.Spec)
	}
	if len(n) == 0 && len(PodLabels(object)) == 0 {
		n.ofAny(object)
	}
	if name, _, _ := unstructured.NestedString(object.Object, "spec", "serviceName"); name != "" {
		n.add(KindService, name, false)
	}
	return n.sorted(), nil
}

// podGroups are the API groups whose templates describe pods.
var podGroups = []string{"apps", "batch"}

// templates are the paths at which types have their pod templates.
var templates = [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}}

// MakesClaims reports whether the cluster makes PersistentVolumeClaims for an object, from
// templates in its spec. These are the volumeClaimTemplates of a StatefulSet and fields named
// volumeClaimTemplate in other types. The claim of an ephemeral volume does not count, because it
// ends with its pod.
func MakesClaims(object *unstructured.Unstructured) bool {
	return hasClaimTemplate(object.Object["spec"], claimTemplateDepth)
}

// claimTemplateDepth limits the depth of the search. Specs of operators have the field at most
// five levels deep.
const claimTemplateDepth = 16

func hasClaimTemplate(value any, depth int) bool {
	if depth == 0 {
		return false
	}
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			switch name {
			case "ephemeral":
				continue
			case "volumeClaimTemplate", "volumeClaimTemplates":
				if list, isList := field.([]any); field != nil && (!isList || len(list) > 0) {
					return true
				}
			}
			if hasClaimTemplate(field, depth-1) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, func(item any) bool { return hasClaimTemplate(item, depth-1) })
	}
	return false
}

func convert(from map[string]any, to any) error {
	return runtime.DefaultUnstructuredConverter.FromUnstructured(from, to)
}

// Selects reports whether a Service sends its traffic to the pods of a workload.
func Selects(service, workload *unstructured.Unstructured) bool {
	selector := Selector(service)
	return len(selector) > 0 && service.GetNamespace() == workload.GetNamespace() &&
		slices.ContainsFunc(PodLabels(workload), labels.SelectorFromSet(selector).Matches)
}

// Selector returns the selector of a Service. It is empty if the Service has none.
func Selector(service *unstructured.Unstructured) map[string]string {
	selector, _, err := unstructured.NestedStringMap(service.Object, "spec", "selector")
	if err != nil {
		return nil
	}
	return selector
}

// PodLabels returns the labels of the pods of a workload, one set for each pod template. For a
// StatefulSet it adds the labels of each pod, which contain the name and the number of the pod.
func PodLabels(workload *unstructured.Unstructured) []labels.Labels {
	var out []labels.Labels
	for _, path := range templates {
		pod, found, err := unstructured.NestedStringMap(workload.Object, append(slices.Clone(path), "metadata", "labels")...)
		if err == nil && found {
			out = append(out, labels.Set(pod))
		}
	}
	if workload.GetKind() == "StatefulSet" && len(out) > 0 {
		out = append(out, numbered(workload, out[0].(labels.Set))...)
	}
	return out
}

// mostNumbered limits the number of pods of a StatefulSet for which PodLabels returns labels.
const mostNumbered = 64

// numbered returns the labels of each pod of a StatefulSet. A Service can select one pod by them.
func numbered(set *unstructured.Unstructured, template labels.Set) []labels.Labels {
	var out []labels.Labels
	first := int32At(set, 0, []string{"spec", "ordinals", "start"})
	for i := range min(int32At(set, 1, []string{"spec", "replicas"}), mostNumbered) {
		number := strconv.Itoa(int(first) + int(i))
		out = append(out, labels.Merge(template, labels.Set{
			appsv1.StatefulSetPodNameLabel: workloadv1alpha1.NameInCluster(set) + "-" + number, appsv1.PodIndexLabel: number,
		}))
	}
	return out
}

type needs []Need

func (n *needs) add(kind, name string, optional bool) {
	if name == "" || kind == KindServiceAccount && name == "default" || kind == KindConfigMap && name == "kube-root-ca.crt" {
		return
	}
	*n = append(*n, Need{Kind: kind, Name: name, Optional: optional})
}

func (n *needs) references(list []corev1.LocalObjectReference) {
	for _, r := range list {
		n.add(KindSecret, r.Name, false)
	}
}

func (n *needs) local(r *corev1.LocalObjectReference) {
	if r != nil {
		n.add(KindSecret, r.Name, false)
	}
}

func (n *needs) ofPod(pod *corev1.PodSpec) {
	n.add(KindServiceAccount, cmp.Or(pod.ServiceAccountName, pod.DeprecatedServiceAccount), false)
	n.references(pod.ImagePullSecrets)
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		n.ofContainer(&c)
	}
	for i := range pod.Volumes {
		n.ofVolume(&pod.Volumes[i].VolumeSource)
	}
}

func (n *needs) ofContainer(c *corev1.Container) {
	for _, from := range c.EnvFrom {
		if r := from.ConfigMapRef; r != nil {
			n.add(KindConfigMap, r.Name, isTrue(r.Optional))
		}
		if r := from.SecretRef; r != nil {
			n.add(KindSecret, r.Name, isTrue(r.Optional))
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			n.add(KindConfigMap, r.Name, isTrue(r.Optional))
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			n.add(KindSecret, r.Name, isTrue(r.Optional))
		}
	}
}

func (n *needs) ofVolume(v *corev1.VolumeSource) {
	if v.ConfigMap != nil {
		n.add(KindConfigMap, v.ConfigMap.Name, isTrue(v.ConfigMap.Optional))
	}
	if v.Secret != nil {
		n.add(KindSecret, v.Secret.SecretName, isTrue(v.Secret.Optional))
	}
	if v.PersistentVolumeClaim != nil {
		n.add(KindClaim, v.PersistentVolumeClaim.ClaimName, false)
	}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				n.add(KindConfigMap, s.ConfigMap.Name, isTrue(s.ConfigMap.Optional))
			}
			if s.Secret != nil {
				n.add(KindSecret, s.Secret.Name, isTrue(s.Secret.Optional))
			}
		}
	}
	n.ofDriver(v)
}

// ofDriver adds the Secrets that storage drivers use.
func (n *needs) ofDriver(v *corev1.VolumeSource) {
	if v.CSI != nil {
		n.local(v.CSI.NodePublishSecretRef)
	}
	if v.AzureFile != nil {
		n.add(KindSecret, v.AzureFile.SecretName, false)
	}
	if v.ISCSI != nil {
		n.local(v.ISCSI.SecretRef)
	}
	if v.CephFS != nil {
		n.local(v.CephFS.SecretRef)
	}
	if v.RBD != nil {
		n.local(v.RBD.SecretRef)
	}
	if v.FlexVolume != nil {
		n.local(v.FlexVolume.SecretRef)
	}
	if v.ScaleIO != nil {
		n.local(v.ScaleIO.SecretRef)
	}
	if v.StorageOS != nil {
		n.local(v.StorageOS.SecretRef)
	}
}

func (n *needs) ofIngress(object *unstructured.Unstructured) error {
	var ingress networkingv1.Ingress
	if err := convert(object.Object, &ingress); err != nil {
		return fmt.Errorf("reading the ingress %s: %w", object.GetName(), err)
	}
	backend := func(b *networkingv1.IngressBackend) {
		if b != nil && b.Service != nil {
			n.add(KindService, b.Service.Name, false)
		}
	}
	backend(ingress.Spec.DefaultBackend)
	for _, rule := range ingress.Spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for i := range rule.HTTP.Paths {
			backend(&rule.HTTP.Paths[i].Backend)
		}
	}
	for _, tls := range ingress.Spec.TLS {
		n.add(KindSecret, tls.SecretName, false)
	}
	return nil
}

// coreNames are the fields of any type whose value is the name of a core/v1 object. coreRefs are
// the endings of fields whose value is an object with that name.
var (
	coreNames = map[string]string{
		"secretName": KindSecret, "configMapName": KindConfigMap, "serviceAccountName": KindServiceAccount,
	}
	coreRefs = map[string]string{
		"secretRef": KindSecret, "secretKeyRef": KindSecret, "configMapRef": KindConfigMap, "configMapKeyRef": KindConfigMap,
		"serviceAccountRef": KindServiceAccount,
	}
)

// ofAny adds the objects to which an object without pods refers, such as the Secret with the key
// of an Issuer, or the certificates of a Gateway. They are optional, because the cluster may make
// them.
func (n *needs) ofAny(object *unstructured.Unstructured) {
	for _, r := range References(object) {
		if !r.Known || r.Group == "" {
			switch r.Kind {
			case KindSecret, KindConfigMap, KindServiceAccount, KindClaim:
				n.add(r.Kind, r.Name, true)
			}
		}
	}
	for field, value := range object.Object {
		if field != "metadata" && field != "status" {
			n.ofValue(value, field, object.GetNamespace(), referenceDepth)
		}
	}
}

func (n *needs) ofValue(value any, field, namespace string, depth int) {
	switch v := value.(type) {
	case string:
		if kind, ok := coreNames[field]; ok {
			n.add(kind, v, true)
		}
	case []any:
		for _, inner := range v {
			if _, isText := inner.(string); !isText && depth > 0 {
				n.ofValue(inner, field, namespace, depth-1)
			}
		}
	case map[string]any:
		for end, kind := range coreRefs {
			name, _ := v["name"].(string)
			of, _ := v["namespace"].(string)
			if strings.HasSuffix(strings.ToLower(field), strings.ToLower(end)) && (of == "" || of == namespace) {
				n.add(kind, name, true)
			}
		}
		for name, inner := range v {
			if depth > 0 {
				n.ofValue(inner, name, namespace, depth-1)
			}
		}
	}
}

// sorted returns the needs, sorted and without duplicates. A need that is both required and
// optional is required.
func (n needs) sorted() []Need {
	slices.SortFunc(n, func(a, b Need) int {
		optional := func(n Need) int { return map[bool]int{true: 1}[n.Optional] }
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), optional(a)-optional(b))
	})
	return slices.CompactFunc(n, func(a, b Need) bool { return a.Kind == b.Kind && a.Name == b.Name })
}

func isTrue(b *bool) bool { return b != nil && *b }

// Followers returns the clusters of an object that follows its needs, as an Ingress follows its
// Services. It goes to all clusters that have one of them. The clusters are sorted and without
// duplicates.
func Followers(needs []Need, targets map[Need][]string) []string {
	var clusters []string
	for _, n := range needs {
		n.Optional = false
		clusters = append(clusters, targets[n]...)
	}
	slices.Sort(clusters)
	return slices.Compact(clusters)
}

// Follow sets the target labels of an object to the clusters where it is needed. It removes the
// labels that an earlier Follow set, and leaves all other target labels. It reports whether it
// changed the object. Syncers make sure that a PersistentVolumeClaim keeps its data when it
// leaves a cluster.
func Follow(object *unstructured.Unstructured, clusters []string) bool {
	set, notes := object.GetLabels(), object.GetAnnotations()
	followed := workloadv1alpha1.Follows(notes)
	var follows []string
	changed := false
	for _, name := range followed {
		if label := workloadv1alpha1.TargetLabelPrefix + name; !slices.Contains(clusters, name) {
			delete(set, label)
			changed = true
		}
	}
	for _, name := range clusters {
		label := workloadv1alpha1.TargetLabelPrefix + name
		has := set[label] == "true"
		if has && !slices.Contains(followed, name) {
			continue
		}
		follows = append(follows, name)
		if !has {
			set = put(set, label, "true")
			changed = true
		}
	}
	slices.Sort(follows)
	list := strings.Join(slices.Compact(follows), ",")
	if list == notes[workloadv1alpha1.FollowsAnnotation] && !changed {
		return false
	}
	delete(notes, workloadv1alpha1.FollowsAnnotation)
	if list != "" {
		notes = put(notes, workloadv1alpha1.FollowsAnnotation, list)
	}
	object.SetLabels(set)
	object.SetAnnotations(notes)
	return true
}

func put(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

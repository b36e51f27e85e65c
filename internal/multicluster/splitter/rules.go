package splitter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// KindPod is the kind of a [Selection] that selects the pods of workloads.
const KindPod = "Pod"

// Rules describe the behavior of a type that its schema does not contain. The zero value contains
// no rules.
type Rules struct {
	Produces []Production
	Selects  []Selection
}

// Production describes an object that a controller in the cluster makes for an object of the
// type. For example, cert-manager makes a Secret for a Certificate. Names are alternatives: the
// first one that is set counts.
type Production struct {
	Kind  string
	Names []string
}

// Selection is the path at which a type selects objects of its namespace by their labels.
type Selection struct {
	Kind string
	Path []string
}

// builtinProduces has the format of [workloadv1alpha1.ProducesAnnotation]. It contains types
// whose objects produce the same Secret in each cluster, or one that is as good. It does not
// contain databases, buckets and generated passwords, because these differ in each cluster.
var builtinProduces = map[schema.GroupKind]string{
	{Group: "cert-manager.io", Kind: "Certificate"}:                    "Secret={spec.secretName}",
	{Group: "external-secrets.io", Kind: "ExternalSecret"}:             "Secret={spec.target.name}|{metadata.name}",
	{Group: "bitnami.com", Kind: "SealedSecret"}:                       "Secret={spec.template.metadata.name}|{metadata.name}",
	{Group: "secrets-store.csi.x-k8s.io", Kind: "SecretProviderClass"}: "Secret={spec.secretObjects[].secretName}",
	{Group: "secrets.hashicorp.com", Kind: "VaultStaticSecret"}:        "Secret={spec.destination.name}",
	{Group: "secrets.hashicorp.com", Kind: "VaultDynamicSecret"}:       "Secret={spec.destination.name}",
	{Group: "secrets.hashicorp.com", Kind: "VaultPKISecret"}:           "Secret={spec.destination.name}",
	{Group: "secrets.hashicorp.com", Kind: "HCPVaultSecretsApp"}:       "Secret={spec.destination.name}",
	{Group: "ricoberger.de", Kind: "VaultSecret"}:                      "Secret={metadata.name}",
	{Group: "onepassword.com", Kind: "OnePasswordItem"}:                "Secret={metadata.name}",
	{Group: "secrets.doppler.com", Kind: "DopplerSecret"}:              "Secret={spec.managedSecret.name}",
	{Group: "secrets.infisical.com", Kind: "InfisicalSecret"}:          "Secret={spec.managedSecretReference.secretName}",
	{Group: "spv.no", Kind: "AzureKeyVaultSecret"}:                     "Secret={spec.output.secret.name}",
	{Group: "isindir.github.com", Kind: "SopsSecret"}:                  "Secret={spec.secretTemplates[].name}",
}

// builtinSelects has the format of [workloadv1alpha1.SelectsAnnotation].
var builtinSelects = map[schema.GroupKind]string{
	{Group: "policy", Kind: "PodDisruptionBudget"}:                   "Pod=spec.selector",
	{Group: "networking.k8s.io", Kind: "NetworkPolicy"}:              "Pod=spec.podSelector",
	{Group: "cilium.io", Kind: "CiliumNetworkPolicy"}:                "Pod=spec.endpointSelector",
	{Group: "monitoring.coreos.com", Kind: "PodMonitor"}:             "Pod=spec.selector",
	{Group: "monitoring.coreos.com", Kind: "ServiceMonitor"}:         "Service=spec.selector",
	{Group: "azmonitoring.coreos.com", Kind: "PodMonitor"}:           "Pod=spec.selector",
	{Group: "azmonitoring.coreos.com", Kind: "ServiceMonitor"}:       "Service=spec.selector",
	{Group: "operator.victoriametrics.com", Kind: "VMPodScrape"}:     "Pod=spec.selector",
	{Group: "operator.victoriametrics.com", Kind: "VMServiceScrape"}: "Service=spec.selector",
	{Group: "monitoring.googleapis.com", Kind: "PodMonitoring"}:      "Pod=spec.selector",
	{Group: "security.istio.io", Kind: "AuthorizationPolicy"}:        "Pod=spec.selector",
	{Group: "security.istio.io", Kind: "PeerAuthentication"}:         "Pod=spec.selector",
	{Group: "security.istio.io", Kind: "RequestAuthentication"}:      "Pod=spec.selector",
	{Group: "telemetry.istio.io", Kind: "Telemetry"}:                 "Pod=spec.selector",
	{Group: "networking.istio.io", Kind: "Sidecar"}:                  "Pod=spec.workloadSelector",
	{Group: "networking.istio.io", Kind: "EnvoyFilter"}:              "Pod=spec.workloadSelector",
	{Group: "networking.istio.io", Kind: "DestinationRule"}:          "Pod=spec.workloadSelector",
	{Group: "policy.linkerd.io", Kind: "Server"}:                     "Pod=spec.podSelector",
	{Group: "opentelemetry.io", Kind: "Instrumentation"}:             "Pod=spec.selector",
}

// RulesOf returns the rules of a type: the built-in ones and those in the annotations of its CRD.
// The error is about the annotations. The rules that could be read are valid even then.
func RulesOf(kind schema.GroupKind, annotations map[string]string) (Rules, error) {
	var out Rules
	var problems []error
	for _, text := range []string{builtinProduces[kind], annotations[workloadv1alpha1.ProducesAnnotation]} {
		produces, err := parseProduces(text)
		out.Produces, problems = append(out.Produces, produces...), append(problems, err)
	}
	for _, text := range []string{builtinSelects[kind], annotations[workloadv1alpha1.SelectsAnnotation]} {
		selects, err := parseSelects(text)
		out.Selects, problems = append(out.Selects, selects...), append(problems, err)
	}
	return out, errors.Join(problems...)
}

// entries calls add for each entry of a comma-separated list of KIND=VALUE.
func entries(annotation, text, example string, kinds []string, add func(kind, value string)) error {
	var problems []error
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		kind, value, found := strings.Cut(entry, "=")
		if !found || value == "" || !slices.Contains(kinds, kind) {
			problems = append(problems, fmt.Errorf("annotation %s: %q is not KIND=VALUE with a kind of %s, such as %s", annotation, entry, strings.Join(kinds, ", "), example))
			continue
		}
		add(kind, value)
	}
	return errors.Join(problems...)
}

func parseProduces(text string) (out []Production, err error) {
	err = entries(workloadv1alpha1.ProducesAnnotation, text, "Secret={spec.secretName}", []string{KindSecret, KindConfigMap}, func(kind, value string) {
		out = append(out, Production{Kind: kind, Names: strings.Split(value, "|")})
	})
	return out, err
}

func parseSelects(text string) (out []Selection, err error) {
	err = entries(workloadv1alpha1.SelectsAnnotation, text, "Service=spec.selector", []string{KindPod, KindService}, func(kind, value string) {
		out = append(out, Selection{Kind: kind, Path: strings.Split(strings.TrimPrefix(value, "."), ".")})
	})
	return out, err
}

// Products returns the objects that controllers in a cluster make for an object, sorted and
// without duplicates. It uses the rules of the type and the annotation of the object.
func (r Rules) Products(object *unstructured.Unstructured) []Need {
	// An invalid entry of the annotation produces nothing.
	own, _ := parseProduces(object.GetAnnotations()[workloadv1alpha1.ProducesAnnotation])
	var out needs
	for _, p := range slices.Concat(r.Produces, own) {
		for _, template := range p.Names {
			names := expand(object, template)
			for _, name := range names {
				out.add(p.Kind, name, false)
			}
			if len(names) > 0 {
				break
			}
		}
	}
	return out.sorted()
}

// expand returns the names that a template stands for. {path} in it is the value of a field, and
// path[] stands for each element of a list. The result is empty if the field is not set.
func expand(object *unstructured.Unstructured, template string) []string {
	before, rest, found := strings.Cut(template, "{")
	path, after, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return []string{template}
	}
	var out []string
	for _, value := range valuesAt(object.Object, strings.Split(path, ".")) {
		if text, ok := value.(string); ok && text != "" {
			out = append(out, before+text+after)
		}
	}
	return out
}

// valuesAt returns the values at a path. name[] in the path stands for each element of a list.
func valuesAt(value any, path []string) []any {
	if len(path) == 0 {
		return []any{value}
	}
	fields, _ := value.(map[string]any)
	name, isList := strings.CutSuffix(path[0], "[]")
	next, found := fields[name]
	if !found {
		return nil
	}
	if !isList {
		return valuesAt(next, path[1:])
	}
	list, _ := next.([]any)
	var out []any
	for _, element := range list {
		out = append(out, valuesAt(element, path[1:])...)
	}
	return out
}

// Selector returns the selector by which an object selects objects of a kind, [KindPod] or
// [KindService]. It is nil if the object selects none.
func (r Rules) Selector(object *unstructured.Unstructured, kind string) labels.Selector {
	for _, s := range r.Selects {
		if s.Kind != kind {
			continue
		}
		if selector := selectorAt(object, s.Path); selector != nil {
			return selector
		}
	}
	return nil
}

func selectorAt(object *unstructured.Unstructured, path []string) labels.Selector {
	value, found, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if err != nil || !found {
		return nil
	}
	fields, ok := value.(map[string]any)
	if !ok {
		return nil // such as the text of Calico, which has its own language
	}
	if set, found, err := unstructured.NestedStringMap(fields, "labels"); found && err == nil {
		return labels.SelectorFromSet(set) // the format of Istio
	}
	var selector metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &selector) != nil {
		return nil
	}
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 && len(fields) > 0 {
		// The value is a map of labels, as in a Service.
		set := labels.Set{}
		for name, v := range fields {
			if text, ok := v.(string); ok {
				set[name] = text
			}
		}
		if len(set) != len(fields) {
			return nil
		}
		return labels.SelectorFromSet(set)
	}
	out, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil {
		return nil
	}
	return out
}

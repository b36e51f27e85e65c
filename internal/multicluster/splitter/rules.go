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

// KindPod among what is selected is what workloads make.
const KindPod = "Pod"

// Rules are what a type does that its schema does not say. The zero value says nothing.
type Rules struct {
	Produces []Production
	Selects  []Selection
}

// Production says which object is made in a cluster for one that is there, as cert-manager makes
// a Secret for a Certificate. Of several names the first counts that is set.
type Production struct {
	Kind  string
	Names []string
}

// Selection says where a type selects objects of its namespace by their labels.
type Selection struct {
	Kind string
	Path []string
}

// builtinProduces are in the form of [workloadv1alpha1.ProducesAnnotation]. They are types of which
// one in each cluster makes the same, or as good, a Secret. A database, a bucket or a generated
// password is another one in each cluster, and is not among them.
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

// builtinSelects are in the form of [workloadv1alpha1.SelectsAnnotation].
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

// RulesOf are the rules of a type: those that are known of it, and what the annotations of its
// CRD say. The error is about the annotations; the rules that could be read count.
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

// entries are what stands between commas, each as KIND=VALUE.
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

// Products are the objects that are made in a cluster for one that is there, each once, sorted:
// by the rules of its type, and by its own annotation.
func (r Rules) Products(object *unstructured.Unstructured) []Need {
	// What of an annotation cannot be read produces nothing.
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

// expand are the names that a text stands for: {path} in it is the value of a field, and path[]
// each element of a list. None if the field is not set.
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

// valuesAt are the values at a path, in which name[] stands for each element of a list.
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

// Selector selects the objects of a kind, [KindPod] or [KindService], that an object is about;
// nil if it is about none.
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
		return nil // as a text in a language of its own, such as Calico's
	}
	if set, found, err := unstructured.NestedStringMap(fields, "labels"); found && err == nil {
		return labels.SelectorFromSet(set) // as Istio writes it
	}
	var selector metav1.LabelSelector
	if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &selector) != nil {
		return nil
	}
	if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 && len(fields) > 0 {
		// A map of labels, as in a Service.
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

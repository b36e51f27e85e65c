package splitter

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Reference is an object in the same namespace to which another object refers by kind and name.
// Examples are the scaleTargetRef of a HorizontalPodAutoscaler and the issuerRef of a
// Certificate.
type Reference struct {
	// Group is valid only if Known is true. The references of some types contain only the kind.
	Group      string
	Known      bool
	Kind, Name string
}

// Is reports whether the reference is to an object of a type.
func (r Reference) Is(kind schema.GroupKind) bool {
	return r.Kind == kind.Kind && (!r.Known || r.Group == kind.Group)
}

// defaultKinds are the types to which a field refers if it does not contain a kind.
var defaultKinds = map[string]schema.GroupKind{
	"backend":         {Kind: KindService},
	"backendRef":      {Kind: KindService},
	"backendRefs":     {Kind: KindService},
	"service":         {Kind: KindService},
	"serviceRef":      {Kind: KindService},
	"certificateRefs": {Kind: KindSecret},
	"issuerRef":       {Group: "cert-manager.io", Kind: "Issuer"},
	"parentRefs":      {Group: "gateway.networking.k8s.io", Kind: "Gateway"},
	"scaleTargetRef":  {Group: "apps", Kind: "Deployment"},
}

// groupKinds are additional defaultKinds for the types of one API group.
var groupKinds = map[string]map[string]schema.GroupKind{
	"external-secrets.io": {
		"secretStoreRef": {Group: "external-secrets.io", Kind: "SecretStore"},
		"storeRef":       {Group: "external-secrets.io", Kind: "SecretStore"},
	},
	"flagger.app": {"templateRef": {Group: "flagger.app", Kind: "MetricTemplate"}},
	"keda.sh":     {"authenticationRef": {Group: "keda.sh", Kind: "TriggerAuthentication"}},
	"postgresql.cnpg.io": {
		"cluster": {Group: "postgresql.cnpg.io", Kind: "Cluster"},
	},
	"projectcontour.io": {"services": {Kind: KindService}, "includes": {Group: "projectcontour.io", Kind: "HTTPProxy"}},
	"tekton.dev":        {"pipelineRef": {Group: "tekton.dev", Kind: "Pipeline"}, "taskRef": {Group: "tekton.dev", Kind: "Task"}},
	"traefik.io":        {"services": {Kind: KindService}, "middlewares": {Group: "traefik.io", Kind: "Middleware"}},
	"traefik.containo.us": {
		"services": {Kind: KindService}, "middlewares": {Group: "traefik.containo.us", Kind: "Middleware"},
	},
	"argoproj.io": {"workflowTemplateRef": {Group: "argoproj.io", Kind: "WorkflowTemplate"}},
}

// nameKinds are the types to which fields refer whose value is only a name, or a list of names.
// The outer key is the API group of the type that has the field.
var nameKinds = map[string]map[string]schema.GroupKind{
	"argoproj.io": {
		"activeService": {Kind: KindService}, "previewService": {Kind: KindService},
		"canaryService": {Kind: KindService}, "stableService": {Kind: KindService},
		"pingService": {Kind: KindService}, "pongService": {Kind: KindService},
		"templateName": {Group: "argoproj.io", Kind: "AnalysisTemplate"},
	},
	"networking.istio.io": {"gateways": {Group: "networking.istio.io", Kind: "Gateway"}, "host": {Kind: KindService}},
	"secrets.hashicorp.com": {
		"vaultAuthRef":       {Group: "secrets.hashicorp.com", Kind: "VaultAuth"},
		"vaultConnectionRef": {Group: "secrets.hashicorp.com", Kind: "VaultConnection"},
	},
}

// referenceDepth limits the depth of the search. Specs of routes have references at most eight
// levels deep.
const referenceDepth = 16

// References returns the objects to which an object refers by kind and name, sorted and without
// duplicates. It does not contain the needs of its pods. See [Needs] for these.
func References(object *unstructured.Unstructured) []Reference {
	var refs []Reference
	visitReferences(object, func(r Reference, _ func(string)) { refs = append(refs, r) })
	slices.SortFunc(refs, func(a, b Reference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(refs)
}

// Retarget replaces the names in the references of an object for which rename returns a name. It
// changes the object.
func Retarget(object *unstructured.Unstructured, rename func(Reference) (string, bool)) {
	visitReferences(object, func(r Reference, set func(string)) {
		if name, ok := rename(r); ok {
			set(name)
		}
	})
}

// referenceVisit is a walk through an object. It calls visit with each reference and with a
// function that sets its name.
type referenceVisit struct {
	group, namespace string
	visit            func(r Reference, set func(string))
}

func visitReferences(object *unstructured.Unstructured, visit func(Reference, func(string))) {
	w := referenceVisit{object.GroupVersionKind().Group, object.GetNamespace(), visit}
	for field, value := range object.Object {
		switch field {
		case "apiVersion", "kind", "metadata", "status":
		default:
			w.value(value, field, referenceDepth)
		}
	}
}

// value searches the value of a field for references.
func (w *referenceVisit) value(value any, field string, depth int) {
	if depth == 0 {
		return
	}
	switch v := value.(type) {
	case map[string]any:
		if r, ok := w.referenceIn(v, field); ok {
			w.visit(r, func(name string) { v["name"] = name })
		}
		for name, inner := range v {
			w.name(inner, name, func(to string) { v[name] = to })
			w.value(inner, name, depth-1)
		}
	case []any:
		for i, inner := range v {
			w.name(inner, field, func(to string) { v[i] = to })
			w.value(inner, field, depth-1)
		}
	}
}

// name visits the value of a field as a reference if that value is only a name.
func (w *referenceVisit) name(value any, field string, set func(string)) {
	name, isText := value.(string)
	kind, isName := nameKinds[w.group][field]
	if isText && isName && len(validation.IsDNS1123Subdomain(name)) == 0 {
		w.visit(Reference{Kind: kind.Kind, Group: kind.Group, Known: true, Name: name}, set)
	}
}

func (w *referenceVisit) referenceIn(v map[string]any, field string) (Reference, bool) {
	text := func(name string) string { s, _ := v[name].(string); return s }
	usual, isUsual := groupKinds[w.group][field]
	if !isUsual {
		usual, isUsual = defaultKinds[field]
	}
	r := Reference{Kind: text("kind"), Name: text("name")}
	if r.Name == "" || r.Kind == "" && !isUsual || text("namespace") != "" && text("namespace") != w.namespace {
		return r, false
	}
	if isUsual && (r.Kind == "" || r.Kind == usual.Kind) {
		r.Kind, r.Group, r.Known = usual.Kind, usual.Group, true
	}
	for _, name := range []string{"group", "apiGroup", "apiVersion"} {
		group, said := v[name].(string)
		if !said {
			continue
		}
		if name == "apiVersion" {
			gv, err := schema.ParseGroupVersion(group)
			if err != nil {
				return r, false
			}
			group = gv.Group
		}
		r.Group, r.Known = group, true
		break
	}
	return r, true
}

// Follows reports whether an object of a type goes to the clusters of the objects to which it
// refers, unless a policy sets how it is divided. That holds for types that cannot scale and make
// neither pods nor claims. A second object of such a type does not repeat any work.
func Follows(object *unstructured.Unstructured, scalable bool) bool {
	_, known := kinds[object.GroupVersionKind().GroupKind()]
	return !known && !scalable && len(PodLabels(object)) == 0 && !MakesClaims(object)
}

// serving are the types that exist for the objects that refer to them, such as an Issuer for
// Certificates.
var serving = map[schema.GroupKind]bool{
	{Group: "argoproj.io", Kind: "AnalysisTemplate"}:          true,
	{Group: "argoproj.io", Kind: "WorkflowTemplate"}:          true,
	{Group: "cert-manager.io", Kind: "Issuer"}:                true,
	{Group: "external-secrets.io", Kind: "SecretStore"}:       true,
	{Group: "flagger.app", Kind: "MetricTemplate"}:            true,
	{Group: "keda.sh", Kind: "TriggerAuthentication"}:         true,
	{Group: "secrets.hashicorp.com", Kind: "VaultAuth"}:       true,
	{Group: "secrets.hashicorp.com", Kind: "VaultConnection"}: true,
	{Group: "tekton.dev", Kind: "Pipeline"}:                   true,
	{Group: "tekton.dev", Kind: "Task"}:                       true,
	{Group: "traefik.io", Kind: "Middleware"}:                 true,
	{Group: "traefik.containo.us", Kind: "Middleware"}:        true,
}

// Serves reports whether objects of a type exist for the objects that refer to them. Such an
// object must be in the clusters of those objects.
func Serves(kind schema.GroupKind) bool { return serving[kind] }

// autoscalers are the types that set the replicas of the object to which they refer.
var autoscalers = map[schema.GroupKind]bool{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}:                          true,
	{Group: "keda.sh", Kind: "ScaledObject"}:                                         true,
	{Group: "datadoghq.com", Kind: "WatermarkPodAutoscaler"}:                         true,
	{Group: "datadoghq.com", Kind: "DatadogPodAutoscaler"}:                           true,
	{Group: "autoscaling.alibabacloud.com", Kind: "AdvancedHorizontalPodAutoscaler"}: true,
}

// IsAutoscaler reports whether objects of a type set the replicas of the object to which they
// refer.
func IsAutoscaler(kind schema.GroupKind) bool { return autoscalers[kind] }

// portions are the numbers in specs that concern all pods of a workload. They are divided with
// the workload. least is the smallest portion of a number that is not 0.
var portions = map[schema.GroupKind][]struct {
	path    []string
	least   int64
	roundUp bool
}{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: {{path: []string{"spec", "minReplicas"}, least: 1}, {path: []string{"spec", "maxReplicas"}, least: 1}},
	{Group: "keda.sh", Kind: "ScaledObject"}: {
		{path: []string{"spec", "minReplicaCount"}, least: 1}, {path: []string{"spec", "maxReplicaCount"}, least: 1}, {path: []string{"spec", "idleReplicaCount"}},
	},
	// A budget that allows no disruption would block every drain.
	{Group: "policy", Kind: "PodDisruptionBudget"}: {{path: []string{"spec", "minAvailable"}, roundUp: true}, {path: []string{"spec", "maxUnavailable"}, least: 1}},
}

// HasPortions reports whether objects of a type contain numbers that are divided with a workload.
func HasPortions(kind schema.GroupKind) bool { return len(portions[kind]) > 0 }

// Portion replaces the numbers of the whole workload in an object by those of one cluster. The
// portions are in proportion to the shares of the clusters in the workload. Percentages do not
// change, because they are valid for each cluster. Portion changes the object.
func Portion(object *unstructured.Unstructured, cluster string, shares map[string]int64) {
	var sum int64
	for _, n := range shares {
		sum += n
	}
	if sum == 0 {
		return
	}
	for _, p := range portions[object.GroupVersionKind().GroupKind()] {
		whole, found, err := unstructured.NestedInt64(object.Object, p.path...)
		if err != nil || !found || whole <= 0 {
			continue
		}
		part := portionOf(whole, cluster, shares)
		if p.roundUp {
			// The spec asked for fewer available pods than the workload has.
			part = (min(whole, maxWeight)*min(shares[cluster], maxWeight/sum) + sum - 1) / sum
		}
		// SetNestedField cannot fail: NestedInt64 has just read this path.
		_ = unstructured.SetNestedField(object.Object, max(part, p.least), p.path...)
	}
}

// portionOf returns the part of a number for one cluster.
func portionOf(whole int64, cluster string, shares map[string]int64) int64 {
	var seats []seat
	for name, n := range shares {
		seats = append(seats, seat{name: name, weight: uint64(max(n, 0)), has: -1})
	}
	apportion(whole, seats)
	for i := range seats {
		if seats[i].name == cluster {
			return seats[i].gets
		}
	}
	return 0
}

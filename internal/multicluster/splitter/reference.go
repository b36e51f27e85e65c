package splitter

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Reference is an object of its namespace that another one names by kind and name, such as the
// scaleTargetRef of a HorizontalPodAutoscaler or the issuerRef of a Certificate.
type Reference struct {
	// Group is of use only if it is Known: some types leave it to the kind.
	Group      string
	Known      bool
	Kind, Name string
}

// Is reports whether the reference is to an object of a type.
func (r Reference) Is(kind schema.GroupKind) bool {
	return r.Kind == kind.Kind && (!r.Known || r.Group == kind.Group)
}

// defaultKinds are what fields refer to that leave out the kind.
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

// groupKinds are defaultKinds of the types of one API group.
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

// nameKinds are what fields of the types of an API group refer to whose value is the name alone,
// or a list of names.
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

// referenceDepth bounds the search: specs of routes nest references eight deep.
const referenceDepth = 16

// References are the objects that an object names by kind and name, each once, sorted. What its
// pods need is not among them; see [Needs].
func References(object *unstructured.Unstructured) []Reference {
	var refs []Reference
	visitReferences(object, func(r Reference, _ func(string)) { refs = append(refs, r) })
	slices.SortFunc(refs, func(a, b Reference) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(refs)
}

// Retarget gives the references of an object other names, where rename has one. It changes the
// object.
func Retarget(object *unstructured.Unstructured, rename func(Reference) (string, bool)) {
	visitReferences(object, func(r Reference, set func(string)) {
		if name, ok := rename(r); ok {
			set(name)
		}
	})
}

// referenceVisit is a walk through an object. visit is called with each reference and with what
// sets its name.
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

// value looks for references in the value of a field.
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

// name takes the value of a field for a reference if it is a name alone.
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

// Follows reports whether an object of a type goes where the objects are that it refers to, unless a
// policy says how it is divided. That is so of what cannot scale and makes neither pods nor claims
// itself: a second one of it does no work twice.
func Follows(object *unstructured.Unstructured, scalable bool) bool {
	_, known := kinds[object.GroupVersionKind().GroupKind()]
	return !known && !scalable && len(PodLabels(object)) == 0 && !MakesClaims(object)
}

// serving are the types that exist for those that refer to them, as an Issuer for Certificates.
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

// Serves reports whether objects of a type exist for those that refer to them, and have to be where
// these are.
func Serves(kind schema.GroupKind) bool { return serving[kind] }

// autoscalers are the types that set the replicas of what they refer to.
var autoscalers = map[schema.GroupKind]bool{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}:                          true,
	{Group: "keda.sh", Kind: "ScaledObject"}:                                         true,
	{Group: "datadoghq.com", Kind: "WatermarkPodAutoscaler"}:                         true,
	{Group: "datadoghq.com", Kind: "DatadogPodAutoscaler"}:                           true,
	{Group: "autoscaling.alibabacloud.com", Kind: "AdvancedHorizontalPodAutoscaler"}: true,
}

// IsAutoscaler reports whether objects of a type set the replicas of what they refer to.
func IsAutoscaler(kind schema.GroupKind) bool { return autoscalers[kind] }

// portions are the numbers in specs that are about all pods of a workload, and so are divided with
// it. least is the smallest portion of a number that is not 0.
var portions = map[schema.GroupKind][]struct {
	path    []string
	least   int64
	roundUp bool
}{
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: {{path: []string{"spec", "minReplicas"}, least: 1}, {path: []string{"spec", "maxReplicas"}, least: 1}},
	{Group: "keda.sh", Kind: "ScaledObject"}: {
		{path: []string{"spec", "minReplicaCount"}, least: 1}, {path: []string{"spec", "maxReplicaCount"}, least: 1}, {path: []string{"spec", "idleReplicaCount"}},
	},
	// A budget that lets no pod go would block every drain.
	{Group: "policy", Kind: "PodDisruptionBudget"}: {{path: []string{"spec", "minAvailable"}, roundUp: true}, {path: []string{"spec", "maxUnavailable"}, least: 1}},
}

// HasPortions reports whether objects of a type are divided with the workload that they are about.
func HasPortions(kind schema.GroupKind) bool { return len(portions[kind]) > 0 }

// Portion gives an object the numbers of a cluster: those of the whole, in proportion to the shares
// that clusters have of the workload. Percentages hold for each cluster as they are. It changes the
// object.
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
			// Less than the whole was never to be available.
			part = (min(whole, maxWeight)*min(shares[cluster], maxWeight/sum) + sum - 1) / sum
		}
		// The path is there: it was just read.
		_ = unstructured.SetNestedField(object.Object, max(part, p.least), p.path...)
	}
}

// portionOf is one cluster's part of a number.
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

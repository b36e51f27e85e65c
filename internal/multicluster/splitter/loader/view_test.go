package loader

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

var deployments = Type{GVK: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, Resource: "deployments", Scalable: true, Reports: true}

// definition returns a CRD that is served and was negotiated.
func definition(group, plural, kind string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Annotations = map[string]string{apiresourcev1alpha1.NegotiatedAnnotation: "true"}
	crd.Spec = apiextensionsv1.CustomResourceDefinitionSpec{
		Group: group, Scope: apiextensionsv1.NamespaceScoped,
		Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1beta1", Served: true}, {Name: "v1", Served: true, Storage: true}},
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}
	return crd
}

func TestTypes(t *testing.T) {
	t.Parallel()
	scaled := definition("apps", "deployments", "Deployment")
	scaled.Spec.Versions[1].Subresources = &apiextensionsv1.CustomResourceSubresources{
		Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		Scale:  &apiextensionsv1.CustomResourceSubresourceScale{SpecReplicasPath: ".spec.size.count", StatusReplicasPath: ".status.replicas"},
	}
	want := deployments
	want.Path = splitter.ScalePath{Spec: []string{"spec", "size", "count"}, Status: []string{"status", "replicas"}}
	changed := func(change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
		crd := scaled.DeepCopy()
		change(crd)
		return crd
	}
	for name, tc := range map[string]struct {
		crd   *apiextensionsv1.CustomResourceDefinition
		offer bool
		want  []Type
	}{
		"negotiated":     {scaled, false, []Type{want}},
		"made by hand":   {changed(func(c *apiextensionsv1.CustomResourceDefinition) { c.Annotations = nil }), false, nil},
		"enforced":       {changed(func(c *apiextensionsv1.CustomResourceDefinition) { c.Annotations = nil }), true, []Type{want}},
		"of the cluster": {changed(func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Scope = apiextensionsv1.ClusterScoped }), true, nil},
		"not served yet": {changed(func(c *apiextensionsv1.CustomResourceDefinition) { c.Status.Conditions = nil }), true, nil},
		"being deleted": {changed(func(c *apiextensionsv1.CustomResourceDefinition) {
			c.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}), true, nil},
		"the kcp's own":    {definition(workloadv1alpha1.GroupName, "placements", "Placement"), false, nil},
		"what follows":     {definition(Ingresses.Group, Ingresses.Resource, "Ingress"), false, nil},
		"without anything": {definition("example.org", "things", "Thing"), false, []Type{{GVK: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}, Resource: "things"}}},
	} {
		var negotiated []*apiresourcev1alpha1.NegotiatedAPIResource
		if tc.offer {
			n := &apiresourcev1alpha1.NegotiatedAPIResource{}
			n.Spec.GroupVersion = apiresourcev1alpha1.GroupVersion{Group: tc.crd.Spec.Group, Version: "v1"}
			n.Spec.Names.Plural, n.Spec.Publish = tc.crd.Spec.Names.Plural, true
			negotiated = append(negotiated, n)
		}
		if diff := cmp.Diff(tc.want, Types([]*apiextensionsv1.CustomResourceDefinition{tc.crd}, negotiated)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// shop is a Source with the objects of a test.
type shop struct {
	clusters   []*workloadv1alpha1.Cluster
	placements []*workloadv1alpha1.Placement
	leaves     []*unstructured.Unstructured
	claims     map[string]*unstructured.Unstructured
	related    []Related
	// places are the targets of a Service with the label app=web, and of an Ingress with needs.
	places  []string
	ingress []splitter.Need
}

func (s *shop) Clusters(context.Context) ([]*workloadv1alpha1.Cluster, error) { return s.clusters, nil }

func (s *shop) Placements(context.Context, string) ([]*workloadv1alpha1.Placement, error) {
	return s.placements, nil
}

func (s *shop) Leaves(context.Context, *unstructured.Unstructured, Type) ([]*unstructured.Unstructured, error) {
	return s.leaves, nil
}

func (s *shop) Object(_ context.Context, kind schema.GroupVersionKind, _, name string) (*unstructured.Unstructured, error) {
	if claim := s.claims[name]; claim != nil {
		return claim, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: kind.Kind}, name)
}

func (s *shop) Places(_ context.Context, _ string, q Query) ([]string, error) {
	if q.Services != nil && q.Services.Matches(labels.Set{"app": "web"}) || q.IsNeeded(s.ingress) {
		return s.places, nil
	}
	return nil, nil
}

func (s *shop) Related(context.Context, string, Query) ([]Related, error) {
	return s.related, nil
}

func newShop(clusters ...string) *shop {
	s := &shop{claims: map[string]*unstructured.Unstructured{}}
	for _, name := range clusters {
		s.clusters = append(s.clusters, &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return s
}

func web() *unstructured.Unstructured {
	root := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"replicas": int64(10), "template": map[string]any{
		"spec": map[string]any{"volumes": []any{map[string]any{"name": "data", "persistentVolumeClaim": map[string]any{"claimName": "data"}},
			map[string]any{"name": "tls", "secret": map[string]any{"secretName": "tls"}}}},
	}}}}
	root.SetGroupVersionKind(deployments.GVK)
	root.SetNamespace("shop")
	root.SetName("web")
	root.SetUID("1")
	return root
}

func part(t *testing.T, root *unstructured.Unstructured, cluster string) *unstructured.Unstructured {
	t.Helper()
	n := int32(5)
	leaf, err := splitter.Render(root, cluster, deployments.Path, &n)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

func read(t *testing.T, s *shop, root *unstructured.Unstructured) *RootState {
	t.Helper()
	w, err := Read(t.Context(), s, root, deployments, time.Unix(100, 0))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestReadLeaves tests which objects are leaves, after different changes to them.
func TestReadLeaves(t *testing.T) {
	t.Parallel()
	root := web()
	for name, tc := range map[string]struct {
		change func(*unstructured.Unstructured)
		want   string
	}{
		"as it was made":    {func(*unstructured.Unstructured) {}, "east=5"},
		"without its label": {func(o *unstructured.Unstructured) { o.SetLabels(nil) }, "east=5"},
		"labeled for another": {func(o *unstructured.Unstructured) {
			o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "west"})
		}, "east=5"},
		"without an owner":      {func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil) }, "east=5"},
		"of an earlier root":    {func(o *unstructured.Unstructured) { owner(o, func(r *metav1.OwnerReference) { r.UID = "0" }) }, "east=5 going"},
		"of another root":       {func(o *unstructured.Unstructured) { owner(o, func(r *metav1.OwnerReference) { r.Name = "other" }) }, ""},
		"of another kind":       {func(o *unstructured.Unstructured) { owner(o, func(r *metav1.OwnerReference) { r.Kind = "Chart" }) }, ""},
		"by another name":       {func(o *unstructured.Unstructured) { o.SetName("copy") }, ""},
		"neither label nor ref": {func(o *unstructured.Unstructured) { o.SetOwnerReferences(nil); o.SetLabels(nil) }, ""},
	} {
		s := newShop("east", "west")
		leaf := part(t, root, "east")
		tc.change(leaf)
		s.leaves = []*unstructured.Unstructured{leaf}
		var got []string
		for _, l := range read(t, s, root).State.Leaves {
			text := fmt.Sprintf("%s=%d", l.Cluster, l.Replicas)
			if l.Deleting {
				text += " going"
			}
			got = append(got, text)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: leaves %q, want %q", name, got, tc.want)
		}
	}
}

func owner(o *unstructured.Unstructured, change func(*metav1.OwnerReference)) {
	refs := o.GetOwnerReferences()
	change(&refs[0])
	o.SetOwnerReferences(refs)
}

// TestReadClaims tests where a claim is bound.
func TestReadClaims(t *testing.T) {
	t.Parallel()
	both := map[string]string{workloadv1alpha1.TargetLabelPrefix + "east": "true", workloadv1alpha1.TargetLabelPrefix + "west": "true"}
	for name, tc := range map[string]struct {
		labels, notes map[string]string
		phase, want   string
	}{
		"one target":         {map[string]string{workloadv1alpha1.ClusterLabel: "west"}, nil, "Bound", "west"},
		"pending":            {map[string]string{workloadv1alpha1.ClusterLabel: "west"}, nil, "Pending", ""},
		"no target":          {nil, nil, "Bound", ""},
		"two, in annotation": {both, map[string]string{workloadv1alpha1.StatusAnnotationPrefix + "east": `{"phase":"Bound"}`}, "Bound", "east"},
		"of a cluster left":  {nil, map[string]string{workloadv1alpha1.StatusAnnotationPrefix + "east": `{"phase":"Bound"}`}, "", ""},
		"not to be read":     {both, map[string]string{workloadv1alpha1.StatusAnnotationPrefix + "east": `{`}, "", ""},
	} {
		root, s := web(), newShop("east", "west")
		claim := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": tc.phase}}}
		claim.SetLabels(tc.labels)
		claim.SetAnnotations(tc.notes)
		s.claims["data"] = claim
		s.leaves = []*unstructured.Unstructured{part(t, root, "west"), part(t, root, "east")}
		var bound []string
		for _, l := range read(t, s, root).State.Leaves {
			if l.Bound {
				bound = append(bound, l.Cluster)
			}
		}
		if got := strings.Join(bound, " "); got != tc.want {
			t.Errorf("%s: bound in %q, want %q", name, got, tc.want)
		}
	}
}

// TestReadClaimTemplates tests that a cluster which has reported the status of a leaf has the
// claims from the leaf's templates.
func TestReadClaimTemplates(t *testing.T) {
	t.Parallel()
	templates := []any{map[string]any{"metadata": map[string]any{"name": "data"}}}
	status := map[string]any{"replicas": int64(1)}
	for name, tc := range map[string]struct {
		spec   map[string]any // fields added to the spec of the root
		status map[string]any // status of the leaf in east
		want   bool
	}{
		"a StatefulSet's":               {map[string]any{"volumeClaimTemplates": templates}, status, true},
		"scaled to nothing":             {map[string]any{"volumeClaimTemplates": templates}, map[string]any{"replicas": int64(0)}, true},
		"an operator's":                 {map[string]any{"storage": map[string]any{"volumeClaimTemplate": map[string]any{"spec": map[string]any{}}}}, status, true},
		"in a list":                     {map[string]any{"pools": []any{map[string]any{"volumeClaimTemplate": map[string]any{"spec": map[string]any{}}}}}, status, true},
		"nothing was said":              {map[string]any{"volumeClaimTemplates": templates}, nil, false},
		"no template":                   {nil, status, false},
		"an empty list":                 {map[string]any{"volumeClaimTemplates": []any{}}, status, false},
		"of an ephemeral volume's pods": {map[string]any{"volumes": []any{map[string]any{"ephemeral": map[string]any{"volumeClaimTemplate": map[string]any{"spec": map[string]any{}}}}}}, status, false},
	} {
		root, s := web(), newShop("east", "west")
		for field, value := range tc.spec {
			if err := unstructured.SetNestedField(root.Object, value, "spec", field); err != nil {
				t.Fatal(err)
			}
		}
		leaf := part(t, root, "east")
		if delete(leaf.Object, "status"); tc.status != nil {
			leaf.Object["status"] = tc.status
		}
		s.leaves = []*unstructured.Unstructured{leaf}
		leaves := read(t, s, root).State.Leaves
		if len(leaves) != 1 || leaves[0].Bound != tc.want {
			t.Errorf("%s: the leaves are %+v, want bound %v", name, leaves, tc.want)
		}
	}
}

// TestReadPlacements tests which of several Placements counts, and which errors are found.
func TestReadPlacements(t *testing.T) {
	t.Parallel()
	placement := func(name string, age int64, change func(*workloadv1alpha1.PlacementSpec)) *workloadv1alpha1.Placement {
		p := &workloadv1alpha1.Placement{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.Unix(age, 0)}}
		change(&p.Spec)
		return p
	}
	selects := func(s *workloadv1alpha1.PlacementSpec) { s.Selector = &metav1.LabelSelector{} }
	s := newShop("east")
	s.placements = []*workloadv1alpha1.Placement{
		placement("young", 9, selects), placement("b", 1, selects), placement("a", 1, selects),
		placement("else", 0, func(s *workloadv1alpha1.PlacementSpec) {
			s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "else"}}
		}),
		placement("named", 99, func(s *workloadv1alpha1.PlacementSpec) {
			s.TargetRef = &workloadv1alpha1.TargetReference{Group: "apps", Kind: "Deployment", Name: "web"}
			s.Divide = workloadv1alpha1.DivideWhole
		}),
	}
	w := read(t, s, web())
	if w.Placement != "named" || !slices.Equal(w.Others, []string{"a", "b", "young"}) || w.Division != workloadv1alpha1.DivideWhole || len(w.Problems) > 0 {
		t.Errorf("placement %q, others %q, division %s, problems %v", w.Placement, w.Others, w.Division, w.Problems)
	}
	wrong := web()
	wrong.SetAnnotations(map[string]string{workloadv1alpha1.HintPrefix + "max-surge": "many"})
	if w := read(t, s, wrong); len(w.Problems) == 0 || w.Division == "" {
		t.Errorf("problems %v, division %q; want some of both", w.Problems, w.Division)
	}
	whole := deployments
	whole.Scalable = false
	hinted := web()
	hinted.SetAnnotations(map[string]string{workloadv1alpha1.HintPrefix + "divide": "replicas"})
	if w, err := Read(t.Context(), s, hinted, whole, time.Unix(100, 0)); err != nil || len(w.Problems) != 1 {
		t.Errorf("dividing what has no scale: %v, %v; want one problem", w.Problems, err)
	}
}

func TestRoleOf(t *testing.T) {
	t.Parallel()
	leaf := part(t, web(), "east")
	ownerOnly := leaf.DeepCopy()
	ownerOnly.SetLabels(nil)
	targeted := web()
	targeted.SetLabels(map[string]string{workloadv1alpha1.TargetLabelPrefix + "east": "true"})
	helm := web()
	helm.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(web(), schema.GroupVersionKind{Group: "helm", Version: "v1", Kind: "Release"})})
	for want, objects := range map[Role][]*unstructured.Unstructured{Root: {web(), helm}, Leaf: {leaf, ownerOnly}, Targeted: {targeted}} {
		for _, o := range objects {
			if got := RoleOf(o, deployments); got != want {
				t.Errorf("RoleOf(%v) = %s, want %s", o.GetLabels(), got, want)
			}
		}
	}
}

var things = Type{GVK: schema.GroupVersionKind{Group: "example.org", Version: "v1", Kind: "Thing"}, Resource: "things"}

// thing returns a root that refers to others of its type.
func thing(name string, refs ...string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(things.GVK)
	o.SetNamespace("shop")
	o.SetName(name)
	var list []any
	for _, ref := range refs {
		list = append(list, map[string]any{"kind": "Thing", "name": ref})
	}
	o.Object["spec"] = map[string]any{"refs": list}
	return o
}

// typed returns a type with its built-in rules.
func typed(group, kind, resource string) Type {
	t := Type{GVK: schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind}, Resource: resource}
	t.Rules, _ = splitter.RulesOf(t.GVK.GroupKind(), nil)
	return t
}

var (
	certificates = typed("cert-manager.io", "Certificate", "certificates")
	issuers      = typed("cert-manager.io", "Issuer", "issuers")
	auths        = typed("keda.sh", "TriggerAuthentication", "triggerauthentications")
	scalers      = typed("keda.sh", "ScaledObject", "scaledobjects")
	monitors     = typed("monitoring.coreos.com", "ServiceMonitor", "servicemonitors")
)

func of(t Type, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(t.GVK)
	o.SetNamespace("shop")
	o.SetName(name)
	return o
}

// cert returns a Certificate that makes the Secret with the same name.
func cert(name, issuer string) *unstructured.Unstructured {
	return of(certificates, name, map[string]any{"secretName": name, "issuerRef": map[string]any{"name": issuer}})
}

func issuer(name, key string) *unstructured.Unstructured {
	return of(issuers, name, map[string]any{"ca": map[string]any{"secretName": key}})
}

// scaled returns a ScaledObject that scales a Deployment and refers to a TriggerAuthentication.
func scaled(name, auth string) *unstructured.Unstructured {
	return of(scalers, "x", map[string]any{"scaleTargetRef": map[string]any{"name": name}, "triggers": []any{map[string]any{"authenticationRef": map[string]any{"name": auth}}}})
}

func monitor(app string) *unstructured.Unstructured {
	return of(monitors, app, map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": app}}})
}

// TestRelate tests the clusters of a root that refers to other roots.
func TestRelate(t *testing.T) {
	t.Parallel()
	hpa := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "maxReplicas": int64(20),
		}}}
		o.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"})
		o.SetNamespace("shop")
		o.SetName("web")
		change(o)
		return o
	}
	to := Type{GVK: schema.GroupVersionKind{Group: "autoscaling", Version: "v2", Kind: "HorizontalPodAutoscaler"}, Resource: "horizontalpodautoscalers"}
	for name, tc := range map[string]struct {
		root    *unstructured.Unstructured
		t       Type
		related []Related
		// clusters are the ones that the root follows, or "-" if it does not follow. leaf is the
		// content of the leaf in east.
		clusters, leaf string
	}{
		"an autoscaler": {hpa(func(*unstructured.Unstructured) {}), to, []Related{{web(), deployments}}, "east west", "web--east 10"},
		"of nothing":    {hpa(func(*unstructured.Unstructured) {}), to, nil, "-", "web 20"},
		"of a Deployment that is being deleted": {hpa(func(*unstructured.Unstructured) {}), to, []Related{{func() *unstructured.Unstructured {
			o := web()
			o.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
			return o
		}(), deployments}}, "-", "web 20"},
		"divided by a hint": {hpa(func(o *unstructured.Unstructured) {
			o.SetAnnotations(map[string]string{workloadv1alpha1.HintPrefix + "divide": "whole"})
		}), to, []Related{{web(), deployments}}, "-", "web--east 10"},
		"a circle, the first":  {thing("a", "b"), things, []Related{{thing("a", "b"), things}, {thing("b", "a"), things}}, "-", ""},
		"a circle, the second": {thing("b", "a"), things, []Related{{thing("a", "b"), things}, {thing("b", "a"), things}}, "east", ""},
		"itself":               {thing("a", "a"), things, []Related{{thing("a", "a"), things}}, "-", ""},
		"a chain":              {thing("c", "b"), things, []Related{{thing("a"), things}, {thing("b", "a"), things}}, "east", ""},
		// A Deployment in both clusters mounts the Secret of the Certificate. The Issuer follows
		// the Certificate.
		"a producer goes after its users":           {cert("tls", "ca"), certificates, []Related{{web(), deployments}, {issuer("ca", ""), issuers}}, "east west", ""},
		"an unneeded Certificate, after its issuer": {cert("other", "ca"), certificates, []Related{{web(), deployments}, {issuer("ca", ""), issuers}}, "east", ""},
		"after an Ingress":                          {cert("ingress-tls", "ca"), certificates, []Related{{issuer("ca", ""), issuers}}, "west", ""},
		"a reference of a needed producer":          {issuer("ca", ""), issuers, []Related{{web(), deployments}, {cert("tls", "ca"), certificates}}, "east west", ""},
		"a reference of an unneeded producer":       {issuer("ca", ""), issuers, []Related{{web(), deployments}, {cert("other", "ca"), certificates}}, "-", ""},
		"what one refers to that an Ingress needs":  {issuer("ca", ""), issuers, []Related{{cert("ingress-tls", "ca"), certificates}}, "west", ""},
		"the Certificate of an Issuer's own key":    {cert("ca-key", "self"), certificates, []Related{{web(), deployments}, {issuer("self", ""), issuers}, {issuer("ca", "ca-key"), issuers}, {cert("tls", "ca"), certificates}}, "east west", ""},
		"what serves one that goes after another":   {of(auths, "a", nil), auths, []Related{{web(), deployments}, {scaled("web", "a"), scalers}}, "east west", ""},
		"one that is served":                        {scaled("web", "a"), scalers, []Related{{web(), deployments}, {of(auths, "a", nil), auths}}, "east west", "web--east 0"},
		"one that goes after nothing else":          {scaled("gone", "a"), scalers, []Related{{of(auths, "a", nil), auths}}, "east", ""},
		"what serves one that goes after nothing":   {of(auths, "a", nil), auths, []Related{{scaled("gone", "a"), scalers}}, "-", ""},
		"a monitor of Services":                     {monitor("web"), monitors, nil, "west", ""},
		"a monitor of Services that are not there":  {monitor("api"), monitors, nil, "-", ""},
	} {
		s := newShop("east", "west")
		s.places, s.ingress = []string{"west"}, []splitter.Need{{Kind: splitter.KindSecret, Name: "ingress-tls"}}
		for _, c := range s.clusters {
			c.Status.Conditions = []metav1.Condition{{Type: workloadv1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
			c.Status.SyncedResources = []string{"deployments.apps", "things.example.org", "horizontalpodautoscalers.autoscaling",
				"certificates.cert-manager.io", "issuers.cert-manager.io", "servicemonitors.monitoring.coreos.com",
				"triggerauthentications.keda.sh", "scaledobjects.keda.sh"}
		}
		s.related = tc.related
		w, err := Read(t.Context(), s, tc.root, tc.t, time.Unix(100, 0))
		if err != nil {
			t.Fatal(err)
		}
		got := "-"
		if w.State.Follows {
			got = strings.Join(w.State.Among, " ")
		}
		if got != tc.clusters {
			t.Errorf("%s: it follows to %q, want %q", name, got, tc.clusters)
		}
		if tc.leaf == "" {
			continue
		}
		leaf := tc.root.DeepCopy()
		w.Adapt(leaf, "east")
		target, _, _ := unstructured.NestedString(leaf.Object, "spec", "scaleTargetRef", "name")
		most, _, _ := unstructured.NestedInt64(leaf.Object, "spec", "maxReplicas")
		if said := fmt.Sprint(target, " ", most); said != tc.leaf || w.IsAdapted() != (said != "web 20") {
			t.Errorf("%s: the leaf in east says %q, want %q", name, said, tc.leaf)
		}
	}
}

package splitter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"
)

// TestReferences tests which fields are references, and to which objects.
func TestReferences(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, want string }{
		"an autoscaler":            {`{scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}`, "apps/Deployment/web"},
		"KEDA leaves out both":     {`{scaleTargetRef: {name: web}}`, "apps/Deployment/web"},
		"KEDA, another kind":       {`{scaleTargetRef: {kind: StatefulSet, name: web}}`, "?/StatefulSet/web"},
		"a certificate":            {`{secretName: x, issuerRef: {name: ca}}`, "cert-manager.io/Issuer/ca"},
		"a cluster's issuer":       {`{issuerRef: {name: ca, kind: ClusterIssuer, group: cert-manager.io}}`, "cert-manager.io/ClusterIssuer/ca"},
		"a route":                  {`{parentRefs: [{name: gate}], rules: [{backendRefs: [{name: web, port: 80}, {name: api, kind: Service, group: ""}]}]}`, "gateway.networking.k8s.io/Gateway/gate /Service/api /Service/web"},
		"a filter of a route":      {`{rules: [{filters: [{requestMirror: {backendRef: {name: copy}}}]}]}`, "/Service/copy"},
		"an ingress":               {`{rules: [{http: {paths: [{backend: {service: {name: web, port: {number: 80}}}}]}}]}`, "/Service/web"},
		"a resource of an ingress": {`{defaultBackend: {resource: {apiGroup: k8s.example.com, kind: StorageBucket, name: assets}}}`, "k8s.example.com/StorageBucket/assets"},
		"a gateway":                {`{listeners: [{tls: {certificateRefs: [{name: web-tls}]}}]}`, "/Secret/web-tls"},
		"a route to a service":     {`{parentRefs: [{name: web, kind: Service, group: ""}]}`, "/Service/web"},
		"VPA and Flagger":          {`{targetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}`, "apps/Deployment/web"},
		"a Rollout's workload":     {`{workloadRef: {apiVersion: apps/v1, kind: Deployment, name: web}}`, "apps/Deployment/web"},
		"not of this group":        {`{authenticationRef: {name: x}, middlewares: [{name: y}], canaryService: z, gateways: [g]}`, ""},
		"a source":                 {`{sourceRef: {kind: GitRepository, name: shop}}`, "?/GitRepository/shop"},
		"another namespace":        {`{sourceRef: {kind: GitRepository, name: shop, namespace: elsewhere}}`, ""},
		"the own namespace":        {`{sourceRef: {kind: GitRepository, name: shop, namespace: team}}`, "?/GitRepository/shop"},
		"no reference":             {`{env: [{name: A, value: b}], kind: big, name: 5}`, ""},
		"one that is not a kind":   {`{ref: {apiVersion: a/b/c, kind: K, name: x}}`, ""},
	} {
		o := object(t, "{apiVersion: example.org/v1, kind: Thing, metadata: {name: x, namespace: team, ownerReferences: [{kind: Other, name: y, apiVersion: a/v1, uid: z}]}, spec: "+tc.spec+"}")
		var got []string
		for _, r := range References(o) {
			group := r.Group
			if !r.Known {
				group = "?"
			}
			got = append(got, group+"/"+r.Kind+"/"+r.Name)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: References() = %v, want %s", name, got, tc.want)
		}
	}
	for kind, tc := range map[string]struct{ spec, want string }{
		"keda.sh/v1alpha1":              {`{triggers: [{authenticationRef: {name: a}}, {authenticationRef: {name: b, kind: ClusterTriggerAuthentication}}]}`, "?/ClusterTriggerAuthentication/b keda.sh/TriggerAuthentication/a"},
		"external-secrets.io/v1":        {`{secretStoreRef: {name: vault}}`, "external-secrets.io/SecretStore/vault"},
		"traefik.io/v1alpha1":           {`{routes: [{services: [{name: web}], middlewares: [{name: auth}]}]}`, "traefik.io/Middleware/auth /Service/web"},
		"argoproj.io/v1alpha1":          {`{strategy: {canary: {canaryService: web-new, stableService: web, analysis: {templates: [{templateName: rate}]}}}}`, "argoproj.io/AnalysisTemplate/rate /Service/web /Service/web-new"},
		"networking.istio.io/v1":        {`{gateways: [gate, mesh], http: [{route: [{destination: {host: web}}]}, {route: [{destination: {host: "*.com"}}]}]}`, "networking.istio.io/Gateway/gate networking.istio.io/Gateway/mesh /Service/web"},
		"secrets.hashicorp.com/v1beta1": {`{vaultAuthRef: default}`, "secrets.hashicorp.com/VaultAuth/default"},
	} {
		o := object(t, "{apiVersion: "+kind+", kind: Thing, metadata: {name: x, namespace: team}, spec: "+tc.spec+"}")
		var got []string
		for _, r := range References(o) {
			group := r.Group
			if !r.Known {
				group = "?"
			}
			got = append(got, group+"/"+r.Kind+"/"+r.Name)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: References() = %v, want %s", kind, got, tc.want)
		}
	}
	// A RoleBinding has no spec.
	binding := object(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: x}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}}`)
	if got := References(binding); len(got) != 1 || got[0].Kind != "Role" {
		t.Errorf("References() of a RoleBinding = %v", got)
	}
}

func TestRetarget(t *testing.T) {
	t.Parallel()
	o := object(t, `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, other: {kind: Secret, name: web}}}`)
	Retarget(o, func(r Reference) (string, bool) { return r.Name + "--east", r.Kind == "Deployment" })
	want := object(t, `{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web--east}, other: {kind: Secret, name: web}}}`)
	if diff := cmp.Diff(want.Object, o.Object); diff != "" {
		t.Errorf("(want, got):\n%s", diff)
	}
}

// TestRetargetWithoutKinds tests that Retarget rewrites references without a kind and fields that
// are only a name, if the object that they refer to has another name. It changes nothing else.
func TestRetargetWithoutKinds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ kind, spec, want string }{
		"an Ingress": {"networking.k8s.io/v1", `{defaultBackend: {resource: {apiGroup: k8s.example.com, kind: StorageBucket, name: x}}, tls: [{secretName: x}]}`,
			`{defaultBackend: {resource: {apiGroup: k8s.example.com, kind: StorageBucket, name: x--east}}, tls: [{secretName: x}]}`},
		"a route":       {"gateway.networking.k8s.io/v1", `{parentRefs: [{name: x, sectionName: x}], hostnames: [x]}`, `{parentRefs: [{name: x--east, sectionName: x}], hostnames: [x]}`},
		"KEDA":          {"keda.sh/v1alpha1", `{scaleTargetRef: {name: x}, triggers: [{name: x, authenticationRef: {name: x}}]}`, `{scaleTargetRef: {name: x--east}, triggers: [{name: x, authenticationRef: {name: x--east}}]}`},
		"a Certificate": {"cert-manager.io/v1", `{secretName: x, issuerRef: {name: x}}`, `{secretName: x, issuerRef: {name: x--east}}`},
		"Istio":         {"networking.istio.io/v1", `{gateways: [x, y], hosts: [x]}`, `{gateways: [x--east, y], hosts: [x]}`},
		"Argo Rollouts": {"argoproj.io/v1alpha1", `{templates: [{templateName: x}], name: x}`, `{templates: [{templateName: x--east}], name: x}`},
	} {
		o := object(t, "{apiVersion: "+tc.kind+", kind: Thing, metadata: {name: x}, spec: "+tc.spec+"}")
		Retarget(o, func(r Reference) (string, bool) { return r.Name + "--east", r.Name == "x" && r.Kind != KindService })
		if diff := cmp.Diff(object(t, "{apiVersion: "+tc.kind+", kind: Thing, metadata: {name: x}, spec: "+tc.want+"}").Object, o.Object); diff != "" {
			t.Errorf("%s (want, got):\n%s", name, diff)
		}
	}
}

func TestPortion(t *testing.T) {
	t.Parallel()
	hpa, pdb, keda := "apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler", "apiVersion: policy/v1, kind: PodDisruptionBudget", "apiVersion: keda.sh/v1alpha1, kind: ScaledObject"
	even := map[string]int64{"east": 5, "west": 5}
	for name, tc := range map[string]struct {
		kind, spec string
		shares     map[string]int64
		east, west string
	}{
		"even":                         {hpa, "{minReplicas: 4, maxReplicas: 20}", even, "{minReplicas: 2, maxReplicas: 10}", "{minReplicas: 2, maxReplicas: 10}"},
		"a remainder":                  {hpa, "{maxReplicas: 9}", even, "{maxReplicas: 5}", "{maxReplicas: 4}"},
		"one to three":                 {hpa, "{minReplicas: 2, maxReplicas: 8}", map[string]int64{"east": 1, "west": 3}, "{minReplicas: 1, maxReplicas: 2}", "{minReplicas: 1, maxReplicas: 6}"},
		"less than there are clusters": {hpa, "{minReplicas: 1, maxReplicas: 1}", even, "{minReplicas: 1, maxReplicas: 1}", "{minReplicas: 1, maxReplicas: 1}"},
		"scaled to zero":               {keda, "{minReplicaCount: 0, maxReplicaCount: 4}", even, "{minReplicaCount: 0, maxReplicaCount: 2}", "{minReplicaCount: 0, maxReplicaCount: 2}"},
		"a budget":                     {pdb, "{minAvailable: 3}", even, "{minAvailable: 2}", "{minAvailable: 2}"},
		"a budget that lets one go":    {pdb, "{maxUnavailable: 1}", even, "{maxUnavailable: 1}", "{maxUnavailable: 1}"},
		"a percentage":                 {pdb, "{minAvailable: 50%}", even, "{minAvailable: 50%}", "{minAvailable: 50%}"},
		"no budget":                    {pdb, "{maxUnavailable: 0}", even, "{maxUnavailable: 0}", "{maxUnavailable: 0}"},
		"one cluster":                  {hpa, "{minReplicas: 3, maxReplicas: 7}", map[string]int64{"east": 10}, "{minReplicas: 3, maxReplicas: 7}", "{minReplicas: 1, maxReplicas: 1}"},
		"nothing runs":                 {hpa, "{maxReplicas: 7}", nil, "{maxReplicas: 7}", "{maxReplicas: 7}"},
	} {
		for cluster, want := range map[string]string{"east": tc.east, "west": tc.west} {
			o := object(t, "{"+tc.kind+", metadata: {name: x}, spec: "+tc.spec+"}")
			Portion(o, cluster, tc.shares)
			if diff := cmp.Diff(object(t, "{"+tc.kind+", metadata: {name: x}, spec: "+want+"}").Object, o.Object); diff != "" {
				t.Errorf("%s in %s (want, got):\n%s", name, cluster, diff)
			}
		}
	}
}

// TestPortionsAreTheWhole tests that the portions of a maximum add up to the whole, unless a
// cluster with a portion of 0 gets the minimum of one. The portions of a minimum of available
// pods never add up to less.
func TestPortionsAreTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		whole, shares := rapid.Int64Range(1, 1000).Draw(r, "whole"), map[string]int64{}
		for i := range rapid.IntRange(1, 6).Draw(r, "clusters") {
			shares[fmt.Sprint("c", i)] = rapid.Int64Range(1, 100).Draw(r, "share")
		}
		var most, least, available int64
		for cluster := range shares {
			hpa := object(t, fmt.Sprintf(`{apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, metadata: {name: x}, spec: {minReplicas: %d, maxReplicas: %d}}`, (whole+1)/2, whole))
			Portion(hpa, cluster, shares)
			low, high := int32At(hpa, 0, []string{"spec", "minReplicas"}), int32At(hpa, 0, []string{"spec", "maxReplicas"})
			if low > high || low < 1 {
				r.Fatalf("%s has from %d to %d of %d among %v", cluster, low, high, whole, shares)
			}
			most, least = most+int64(high), least+int64(low)
			pdb := object(t, fmt.Sprintf(`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x}, spec: {minAvailable: %d}}`, whole))
			Portion(pdb, cluster, shares)
			available += int64(int32At(pdb, 0, []string{"spec", "minAvailable"}))
		}
		if n := int64(len(shares)); most < whole || most > whole+n || least > (whole+1)/2+n || available < whole || available > whole+n {
			r.Fatalf("of %d among %v: %d at most, %d at least, %d available", whole, shares, most, least, available)
		}
	})
}

func TestPodSelector(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text string
		want bool
		none bool
	}{
		"a budget":              {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x}, spec: {selector: {matchLabels: {app: web}}}}`, true, false},
		"another's":             {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x}, spec: {selector: {matchLabels: {app: api}}}}`, false, false},
		"a policy for all":      {`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: x}, spec: {podSelector: {}}}`, true, false},
		"Istio's":               {`{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: x}, spec: {workloadSelector: {labels: {app: web}}}}`, true, false},
		"without":               {`{apiVersion: policy/v1, kind: PodDisruptionBudget, metadata: {name: x}, spec: {}}`, false, true},
		"one that selects none": {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {selector: {matchLabels: {app: web}}}}`, false, true},
	} {
		o := object(t, tc.text)
		rules, err := RulesOf(o.GroupVersionKind().GroupKind(), nil)
		if err != nil {
			t.Fatal(err)
		}
		selector := rules.Selector(o, KindPod)
		if (selector == nil) != tc.none || selector != nil && selector.Matches(labels.Set{"app": "web"}) != tc.want {
			t.Errorf("%s: Selector() = %v", name, selector)
		}
	}
}

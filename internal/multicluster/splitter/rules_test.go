package splitter

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestProducts tests which objects controllers in a cluster make for an object.
func TestProducts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, crd, want string }{
		"a Certificate":                      {`{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: web}, spec: {secretName: web-tls}}`, "", "Secret/web-tls"},
		"an ExternalSecret":                  {`{apiVersion: external-secrets.io/v1, kind: ExternalSecret, metadata: {name: db}, spec: {target: {name: db-login}}}`, "", "Secret/db-login"},
		"an ExternalSecret without a target": {`{apiVersion: external-secrets.io/v1, kind: ExternalSecret, metadata: {name: db}, spec: {}}`, "", "Secret/db"},
		"a SealedSecret":                     {`{apiVersion: bitnami.com/v1alpha1, kind: SealedSecret, metadata: {name: db}, spec: {}}`, "", "Secret/db"},
		"a list":                             {`{apiVersion: secrets-store.csi.x-k8s.io/v1, kind: SecretProviderClass, metadata: {name: x}, spec: {secretObjects: [{secretName: a}, {secretName: b}, {}]}}`, "", "Secret/a Secret/b"},
		"a database, which is not another in each": {`{apiVersion: postgresql.cnpg.io/v1, kind: Cluster, metadata: {name: pg}, spec: {writeConnectionSecretToRef: {name: login}}}`, "", ""},
		"nothing":                       {`{apiVersion: example.org/v1, kind: Thing, metadata: {name: x}, spec: {secretName: y}}`, "", ""},
		"by the annotation of the CRD":  {`{apiVersion: example.org/v1, kind: Thing, metadata: {name: x}, spec: {out: made}}`, "Secret={spec.out}, ConfigMap={metadata.name}-settings", "ConfigMap/x-settings Secret/made"},
		"by its own annotation":         {`{apiVersion: example.org/v1, kind: Thing, metadata: {name: x, annotations: {workloads.kcp.dev/produces: "Secret=y,ConfigMap={spec.out}"}}, spec: {out: z}}`, "", "ConfigMap/z Secret/y"},
		"by one that is not understood": {`{apiVersion: example.org/v1, kind: Thing, metadata: {name: x, annotations: {workloads.kcp.dev/produces: "y,Pod=z,Secret="}}}`, "", ""},
	} {
		o := object(t, tc.text)
		rules, err := RulesOf(o.GroupVersionKind().GroupKind(), map[string]string{workloadv1alpha1.ProducesAnnotation: tc.crd})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range rules.Products(o) {
			got = append(got, n.Kind+"/"+n.Name)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: Products() = %v, want %s", name, got, tc.want)
		}
	}
	for _, wrong := range []string{"spec.secretName", "Pod={spec.x}", "Secret="} {
		if _, err := RulesOf(object(t, `{apiVersion: v1, kind: X, metadata: {name: x}}`).GroupVersionKind().GroupKind(), map[string]string{workloadv1alpha1.ProducesAnnotation: wrong}); err == nil || !strings.Contains(err.Error(), "such as Secret={spec.secretName}") {
			t.Errorf("RulesOf(%q) = %v, want an error with an example", wrong, err)
		}
	}
}

// TestSelectors tests what types select, by the built-in rules and by those of their CRDs.
func TestSelectors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text, crd, kind string
		want            bool
	}{
		"a ServiceMonitor":         {`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: x}, spec: {selector: {matchLabels: {app: web}}}}`, "", KindService, true},
		"a ServiceMonitor, no pod": {`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: x}, spec: {selector: {matchLabels: {app: web}}}}`, "", KindPod, false},
		"by an expression":         {`{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: x}, spec: {selector: {matchExpressions: [{key: app, operator: In, values: [web, api]}]}}}`, "", KindService, true},
		"a PodMonitor":             {`{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: x}, spec: {selector: {matchLabels: {app: web}}}}`, "", KindPod, true},
		"another's":                {`{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: x}, spec: {selector: {matchLabels: {app: api}}}}`, "", KindPod, false},
		"by the CRD":               {`{apiVersion: example.org/v1, kind: Scrape, metadata: {name: x}, spec: {of: {app: web}}}`, "Service=.spec.of", KindService, true},
		"a text":                   {`{apiVersion: example.org/v1, kind: Scrape, metadata: {name: x}, spec: {of: "app == 'web'"}}`, "Service=spec.of", KindService, false},
		"not set":                  {`{apiVersion: example.org/v1, kind: Scrape, metadata: {name: x}}`, "Service=spec.of", KindService, false},
	} {
		o := object(t, tc.text)
		rules, err := RulesOf(o.GroupVersionKind().GroupKind(), map[string]string{workloadv1alpha1.SelectsAnnotation: tc.crd})
		if err != nil {
			t.Fatal(err)
		}
		selector := rules.Selector(o, tc.kind)
		if got := selector != nil && selector.Matches(labels.Set{"app": "web"}); got != tc.want {
			t.Errorf("%s: it selects %v, want %v", name, selector, tc.want)
		}
	}
}

// TestNeedsOfAnyType tests that Needs finds the Secrets, ConfigMaps and ServiceAccounts to which
// types without pods refer.
func TestNeedsOfAnyType(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"an Issuer":        {`{apiVersion: cert-manager.io/v1, kind: Issuer, metadata: {name: x}, spec: {ca: {secretName: ca-key}, acme: {privateKeySecretRef: {name: acme}}}}`, "Secret/acme Secret/ca-key"},
		"a Gateway":        {`{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: x}, spec: {listeners: [{tls: {certificateRefs: [{name: web-tls}]}}]}}`, "Secret/web-tls"},
		"a store":          {`{apiVersion: external-secrets.io/v1, kind: SecretStore, metadata: {name: x, namespace: team}, spec: {provider: {vault: {auth: {tokenSecretRef: {name: token, key: t}, kubernetes: {serviceAccountRef: {name: eso}}}}, other: {secretRef: {name: far, namespace: elsewhere}}}}}`, "Secret/token ServiceAccount/eso"},
		"a claim's source": {`{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: x}, spec: {dataSource: {kind: PersistentVolumeClaim, name: old}}}`, "PersistentVolumeClaim/old"},
		"a name alone":     {`{apiVersion: example.org/v1, kind: Thing, metadata: {name: x}, spec: {name: a, secret: b, list: [c]}}`, ""},
	} {
		needs, err := Needs(object(t, tc.text))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range needs {
			got = append(got, n.Kind+"/"+n.Name)
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: Needs() = %v, want %s", name, got, tc.want)
		}
	}
}

package unsupported

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/apis/core"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

// rules returns the rules of a server. Types without a rule are honored completely.
func rules(cfg Config) map[schema.GroupResource]rule {
	all := map[schema.GroupResource]rule{
		{Resource: "namespaces"}:      markedOnly(namespaceMarks),
		{Resource: "secrets"}:         of(secret),
		{Resource: "serviceaccounts"}: of(serviceAccount),
		{Resource: "resourcequotas"}:  of(func(now, before *core.ResourceQuota) findings { return resourceQuota(cfg, now, before) }),
		{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: of(func(now, before *certificates.CertificateSigningRequest) findings {
			return signingRequest(cfg, now, before)
		}),
		{Group: "apiregistration.k8s.io", Resource: "apiservices"}:                           of(apiService),
		{Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"}: of(validatingWebhooks),
		{Group: "admissionregistration.k8s.io", Resource: "mutatingwebhookconfigurations"}:   of(mutatingWebhooks),
		{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}:               of(definition),
	}
	if !cfg.Carries {
		for _, resource := range []schema.GroupResource{rikv1alpha1.Resource("workloads"), rikv1alpha1.Resource("instances"), {Group: apps.GroupName, Resource: "deployments"}} {
			all[resource] = markedOnly(podMarks)
		}
	}
	return all
}

// of creates a rule for objects of one type. It accepts other types, which do not occur.
func of[T any](validate func(now, before *T) findings) rule {
	return func(now, before runtime.Object) findings {
		object, ok := any(now).(*T)
		if !ok {
			return findings{}
		}
		old, _ := any(before).(*T)
		return validate(object, old)
	}
}

const noServices = "this API server does not resolve Services, so it cannot call this one"

func resourceQuota(cfg Config, now, before *core.ResourceQuota) findings {
	if before != nil && equality.Semantic.DeepEqual(now.Spec, before.Spec) {
		return findings{}
	}
	if cfg.Carries {
		return findings{warnings: []string{"spec.hard: this server does not enforce ResourceQuotas; a cluster to which it is sent may enforce it"}}
	}
	return findings{refusals: field.ErrorList{field.Forbidden(field.NewPath("spec", "hard"),
		"this server does not enforce ResourceQuotas: set limits in the workloads")}}
}

func signingRequest(cfg Config, now, before *certificates.CertificateSigningRequest) findings {
	if before != nil {
		return findings{} // the spec never changes
	}
	path, reason := field.NewPath("spec", "signerName"), ""
	switch name := now.Spec.SignerName; {
	case name == certificatesv1.KubeAPIServerClientSignerName:
	case name == workloadv1alpha1.SyncerSigner && !cfg.Carries:
		reason = "only a kcp signs certificates for syncers"
	case name == certificatesv1.KubeAPIServerClientKubeletSignerName, name == certificatesv1.KubeletServingSignerName:
		reason = "rik has no kubelets: a node joins with a token (\"rikctl token create\") and renews its certificate by itself"
	case strings.HasPrefix(name, "kubernetes.io/"):
		reason = "no controller here signs for it: use " + certificatesv1.KubeAPIServerClientSignerName + " for a user's certificate, or the name of a signer that you run"
	}
	if reason == "" {
		return findings{}
	}
	return findings{refusals: field.ErrorList{field.Invalid(path, now.Spec.SignerName, reason)}}
}

func secret(now, before *core.Secret) findings {
	if before != nil || now.Type != core.SecretType(corev1.SecretTypeBootstrapToken) {
		return findings{}
	}
	return findings{warnings: []string{"type: bootstrap tokens are not supported: create a token for a node with \"rikctl token create\""}}
}

func serviceAccount(now, before *core.ServiceAccount) findings {
	if before == nil {
		before = &core.ServiceAccount{}
	}
	var v findings
	if len(now.ImagePullSecrets) > 0 && !slices.Equal(now.ImagePullSecrets, before.ImagePullSecrets) {
		v.warnings = append(v.warnings, "imagePullSecrets: instances have no service account: name the Secrets in spec.imagePullSecrets of the workload")
	}
	if now.AutomountServiceAccountToken != nil && *now.AutomountServiceAccountToken && !equality.Semantic.DeepEqual(now.AutomountServiceAccountToken, before.AutomountServiceAccountToken) {
		v.warnings = append(v.warnings, "automountServiceAccountToken: tokens are not mounted into instances: mount a Secret of type kubernetes.io/service-account-token")
	}
	v.warnings = append(v.warnings, marks(now, before, serviceAccountMarks)...)
	return v
}

func apiService(now, before *apiregistration.APIService) findings {
	if now.Spec.Service == nil || before != nil && equality.Semantic.DeepEqual(now.Spec.Service, before.Spec.Service) {
		return findings{}
	}
	return findings{refusals: field.ErrorList{field.Forbidden(field.NewPath("spec", "service"),
		noServices+", and an API without an answer blocks the deletion of all namespaces: define the types with CRDs")}}
}

func validatingWebhooks(now, before *admissionregistration.ValidatingWebhookConfiguration) findings {
	clients := func(c *admissionregistration.ValidatingWebhookConfiguration) (all []admissionregistration.WebhookClientConfig) {
		for i := range c.Webhooks {
			all = append(all, c.Webhooks[i].ClientConfig)
		}
		return all
	}
	if before == nil {
		return webhooks(clients(now), nil)
	}
	return webhooks(clients(now), clients(before))
}

func mutatingWebhooks(now, before *admissionregistration.MutatingWebhookConfiguration) findings {
	clients := func(c *admissionregistration.MutatingWebhookConfiguration) (all []admissionregistration.WebhookClientConfig) {
		for i := range c.Webhooks {
			all = append(all, c.Webhooks[i].ClientConfig)
		}
		return all
	}
	if before == nil {
		return webhooks(clients(now), nil)
	}
	return webhooks(clients(now), clients(before))
}

func webhooks(now, before []admissionregistration.WebhookClientConfig) findings {
	var v findings
	for i := range now {
		known := func(c admissionregistration.WebhookClientConfig) bool {
			return equality.Semantic.DeepEqual(c.Service, now[i].Service)
		}
		if now[i].Service == nil || slices.ContainsFunc(before, known) {
			continue
		}
		v.refusals = append(v.refusals, field.Forbidden(field.NewPath("webhooks").Index(i).Child("clientConfig", "service"),
			noServices+": set clientConfig.url to an address at which the API server reaches the webhook"))
	}
	return v
}

func definition(now, before *apiextensions.CustomResourceDefinition) findings {
	service := func(d *apiextensions.CustomResourceDefinition) *apiextensions.ServiceReference {
		if d == nil || d.Spec.Conversion == nil || d.Spec.Conversion.WebhookClientConfig == nil {
			return nil
		}
		return d.Spec.Conversion.WebhookClientConfig.Service
	}
	if service(now) == nil || equality.Semantic.DeepEqual(service(now), service(before)) {
		return findings{}
	}
	return findings{refusals: field.ErrorList{field.Forbidden(field.NewPath("spec", "conversion", "webhook", "clientConfig", "service"),
		noServices+": set clientConfig.url, or serve one version with the conversion None")}}
}

// mark is a label or annotation without effect here. If the key ends in a slash, it is a
// prefix.
type mark struct{ key, instead string }

var (
	namespaceMarks = []mark{
		{"pod-security.kubernetes.io/", "pod security levels are not enforced: the verb \"privileged\" on workloads.rik.dev decides who may reach the node"},
		{"scheduler.alpha.kubernetes.io/", "node selectors and tolerations of a namespace are not applied: set them in the workloads"},
	}
	podMarks = []mark{
		{"container.apparmor.security.beta.kubernetes.io/", "AppArmor profiles are not applied"},
		{"container.seccomp.security.alpha.kubernetes.io/", "seccomp profiles in annotations are not applied; every container has the default profile of the runtime"},
		{"seccomp.security.alpha.kubernetes.io/", "seccomp profiles in annotations are not applied; every container has the default profile of the runtime"},
		{"pod-security.kubernetes.io/", "pod security levels are not enforced"},
	}
	serviceAccountMarks = []mark{
		{"kubernetes.io/enforce-mountable-secrets", "instances have no service account, so the annotation does not restrict Secrets"},
	}
)

// markedOnly creates the rule of types for which only labels and annotations are checked,
// including those of a template.
func markedOnly(known []mark) rule {
	return func(now, before runtime.Object) findings {
		return findings{warnings: marks(now, before, known)}
	}
}

// marks returns warnings for new labels and annotations.
func marks(now, before runtime.Object, known []mark) []string {
	old := map[string]bool{}
	if before != nil {
		for _, set := range markings(before) {
			for key := range set.values {
				old[set.where+key] = true
			}
		}
	}
	var warnings []string
	for _, set := range markings(now) {
		for _, key := range slices.Sorted(maps.Keys(set.values)) {
			for _, m := range known {
				if (key == m.key || strings.HasSuffix(m.key, "/") && strings.HasPrefix(key, m.key)) && !old[set.where+key] {
					warnings = append(warnings, fmt.Sprintf("%s[%s]: it has no effect here: %s", set.where, key, m.instead))
				}
			}
		}
	}
	return warnings
}

// marking is a set of labels or annotations with its path.
type marking struct {
	where  string
	values map[string]string
}

func markings(object runtime.Object) []marking {
	var all []marking
	if m, err := meta.Accessor(object); err == nil {
		all = append(all, marking{"metadata.labels", m.GetLabels()}, marking{"metadata.annotations", m.GetAnnotations()})
	}
	return append(all, templateMarkings(object)...)
}

// templateMarkings returns the labels and annotations of the instances that a workload creates.
func templateMarkings(object runtime.Object) []marking {
	switch o := object.(type) {
	case *rik.Workload:
		return []marking{{"spec.labels", o.Spec.Labels}, {"spec.annotations", o.Spec.Annotations}}
	case *apps.Deployment:
		return []marking{{"spec.template.metadata.labels", o.Spec.Template.Labels}, {"spec.template.metadata.annotations", o.Spec.Template.Annotations}}
	default:
		return nil
	}
}

package apiserver_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

// warningCollector collects the warnings that a client receives.
type warningCollector struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (h *warningCollector) HandleWarningHeader(_ int, _ string, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.texts = append(h.texts, text)
}

func (h *warningCollector) take() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := strings.Join(h.texts, "\n")
	h.texts = nil
	return all
}

// object creates an object like one of a manifest.
func object(apiVersion, kind, namespace, name string, more map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind}}
	for key, value := range more {
		o.Object[key] = value
	}
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

func webhookOf(service bool) []any {
	client := map[string]any{"url": "https://127.0.0.1:1/"}
	if service {
		client = map[string]any{"service": map[string]any{"namespace": "x", "name": "y"}}
	}
	return []any{map[string]any{
		"name": "a.example.com", "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": []any{"v1"}, "failurePolicy": "Ignore",
		"rules": []any{map[string]any{"apiGroups": []any{"none.example.com"}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"}, "resources": []any{"nothings"}}},
	}}
}

// TestWhatIsNotHonoredIsRefused: objects that cannot work are not stored.
func TestWhatIsNotHonoredIsRefused(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := s.Namespace(t)
	hooks := schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
	tests := map[string]struct {
		resource schema.GroupVersionResource
		object   *unstructured.Unstructured
		want     string
	}{
		"quota": {corev1.SchemeGroupVersion.WithResource("resourcequotas"), object("v1", "ResourceQuota", namespace, "q", map[string]any{
			"spec": map[string]any{"hard": map[string]any{"count/configmaps": "1"}},
		}), "does not enforce"},
		"API behind a service": {schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
			object("apiregistration.k8s.io/v1", "APIService", "", "v1beta1.metrics.example.com", map[string]any{"spec": map[string]any{
				"group": "metrics.example.com", "version": "v1beta1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
				"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "kube-system", "name": "metrics"},
			}}), "spec.service"},
		"webhook behind a service": {hooks,
			object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", namespace, map[string]any{"webhooks": webhookOf(true)}), "webhooks[0].clientConfig.service"},
		"mutating webhook behind a service": {schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
			object("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "", namespace, map[string]any{"webhooks": webhookOf(true)}), "webhooks[0].clientConfig.service"},
		"conversion behind a service": {schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
			object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "things.honor.example.com", map[string]any{"spec": map[string]any{
				"group": "honor.example.com", "scope": "Namespaced", "names": map[string]any{"plural": "things", "kind": "Thing"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
				"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []any{"v1"},
					"clientConfig": map[string]any{"service": map[string]any{"namespace": "x", "name": "y"}}}},
			}}), "spec.conversion.webhook.clientConfig.service"},
	}
	for _, name := range []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving", "kubernetes.io/legacy-unknown", "rik.dev/syncer"} {
		tests["signer "+name] = struct {
			resource schema.GroupVersionResource
			object   *unstructured.Unstructured
			want     string
		}{certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), object("certificates.k8s.io/v1", "CertificateSigningRequest", "", strings.ReplaceAll(namespace+"-"+name, "/", "-"), map[string]any{
			"spec": map[string]any{"signerName": name, "request": newRequest(t, "x"), "usages": []any{"client auth"}},
		}), "spec.signerName"}
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := client.Resource(tc.resource).Namespace(tc.object.GetNamespace()).Create(t.Context(), tc.object, metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("creating = %v, want invalid with %q", err, tc.want)
			}
		})
	}
	// Objects that can work are accepted.
	taken := object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", namespace+"-url", map[string]any{"webhooks": webhookOf(false)})
	if _, err := client.Resource(hooks).Create(t.Context(), taken, metav1.CreateOptions{}); err != nil {
		t.Errorf("a webhook with a URL: %v", err)
	}
	t.Cleanup(func() {
		_ = client.Resource(hooks).Delete(context.Background(), taken.GetName(), metav1.DeleteOptions{})
	})
	if _, err := s.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Patch(t.Context(), taken.GetName(), "application/json-patch+json",
		[]byte(`[{"op":"replace","path":"/webhooks/0/clientConfig","value":{"service":{"namespace":"x","name":"y"}}}]`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("changing a webhook to a service = %v, want invalid", err)
	}
}

// TestFieldsWithoutEffectCauseAWarning: a field that is stored and has no effect causes one warning.
func TestFieldsWithoutEffectCauseAWarning(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	var h warningCollector
	config := rest.CopyConfig(s.Config)
	config.WarningHandler = &h
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := s.Namespace(t)
	expect := func(what string, err error, want string) {
		t.Helper()
		got := h.take()
		if err != nil || want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: error %v, warnings %q, want %q", what, err, got, want)
		}
	}
	ns, err := client.CoreV1().Namespaces().Patch(t.Context(), namespace, "application/merge-patch+json", []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`), metav1.PatchOptions{})
	expect("a pod security level", err, "pod security levels are not enforced")
	ns.Labels["other"] = "x"
	_, err = client.CoreV1().Namespaces().Update(t.Context(), ns, metav1.UpdateOptions{})
	expect("another label", err, "")
	automount := true
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta:       metav1.ObjectMeta{Name: "sa", Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": "true"}},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "x"}}, AutomountServiceAccountToken: &automount,
	}, metav1.CreateOptions{})
	got := strings.Join([]string{h.take()}, "")
	for _, want := range []string{"imagePullSecrets", "automountServiceAccountToken", "enforce-mountable-secrets"} {
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("a service account: error %v, warnings %q, want %q", err, got, want)
		}
	}
	_, err = client.CoreV1().Secrets(namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Type: corev1.SecretTypeBootstrapToken}, metav1.CreateOptions{})
	expect("a bootstrap token", err, "rikctl token create")
	workload := object("rik.dev/v1alpha1", "Workload", namespace, "w", map[string]any{"spec": map[string]any{
		"annotations": map[string]any{"container.apparmor.security.beta.kubernetes.io/a": "localhost/x"},
		"containers":  []any{map[string]any{"name": "a", "image": "docker://example.com/x:1"}},
	}})
	_, err = objects.Resource(schema.GroupVersionResource{Group: "rik.dev", Version: "v1alpha1", Resource: "workloads"}).Namespace(namespace).Create(t.Context(), workload, metav1.CreateOptions{})
	expect("an AppArmor profile", err, "AppArmor")
	deployment := object("apps/v1", "Deployment", namespace, "d", map[string]any{"spec": map[string]any{
		"selector": map[string]any{"matchLabels": map[string]any{"a": "b"}},
		"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"a": "b"}, "annotations": map[string]any{"container.apparmor.security.beta.kubernetes.io/a": "localhost/x"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"name": "a", "image": "example.com/x:1"}}},
		},
	}})
	_, err = objects.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace(namespace).Create(t.Context(), deployment, metav1.CreateOptions{})
	expect("an AppArmor profile of a Deployment", err, "spec.template.metadata.annotations[container.apparmor")
	_, err = client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{})
	expect("a config map", err, "")
}

// newRequest returns a certificate request with a new key for a user.
func newRequest(t *testing.T, user string, groups ...string) []byte {
	t.Helper()
	raw, _ := requestAndKey(t, user, groups...)
	return raw
}

func requestAndKey(t *testing.T, user string, groups ...string) (request, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if request, err = cert.MakeCSR(key, &pkix.Name{CommonName: user, Organization: groups}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	return request, keyPEM
}

// TestUserCertificatesAreSigned follows Kubernetes' own instructions for a new user.
func TestUserCertificatesAreSigned(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	requests := s.Client.CertificatesV1().CertificateSigningRequests()
	// sign returns the certificate, or the reason for a refusal.
	sign := func(request []byte) (certificate []byte, refusal string) {
		made, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "user-"},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
		if _, err := requests.UpdateApproval(t.Context(), made.Name, made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, apitest.Timeout, "the request is decided", func(ctx context.Context) error {
			now, err := requests.Get(ctx, made.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range now.Status.Conditions {
				if c.Type == certificatesv1.CertificateFailed {
					refusal = c.Message
				}
			}
			if certificate = now.Status.Certificate; len(certificate) == 0 && refusal == "" {
				return errors.New("not yet")
			}
			return nil
		})
		return certificate, refusal
	}
	raw, key := requestAndKey(t, "carol", "dev")
	certificate, refusal := sign(raw)
	if refusal != "" {
		t.Fatal(refusal)
	}
	config := rest.AnonymousClientConfig(s.Config)
	config.CertData, config.KeyData = certificate, key
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	self, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || self.Status.UserInfo.Username != "carol" || !strings.Contains(fmt.Sprint(self.Status.UserInfo.Groups), "dev") {
		t.Errorf("the user is %+v, %v; want carol in dev", self, err)
	}
	for _, subject := range [][]string{{"rik:node:n1", "rik:nodes"}, {"rik:controller"}, {"x", "rik:components"}, {"system:rik:syncer:east"}, {""}} {
		raw := newRequest(t, subject[0], subject[1:]...)
		if certificate, refusal := sign(raw); refusal == "" {
			t.Errorf("%q got a certificate: %.20s", subject, certificate)
		}
	}
}

// TestTokenSecretsAreFilled: a Secret of the type for service account tokens gets a valid
// token.
func TestTokenSecretsAreFilled(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	namespace := s.Namespace(t)
	if _, err := s.Client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secrets := s.Client.CoreV1().Secrets(namespace)
	if _, err := secrets.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "ci", Annotations: map[string]string{corev1.ServiceAccountNameKey: "ci"}}, Type: corev1.SecretTypeServiceAccountToken,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.Config)
	poll.Until(t, apitest.Timeout, "the Secret has a token", func(ctx context.Context) error {
		secret, err := secrets.Get(ctx, "ci", metav1.GetOptions{})
		if err != nil {
			return err
		}
		config.BearerToken = string(secret.Data[corev1.ServiceAccountTokenKey])
		if config.BearerToken == "" || len(secret.Data[corev1.ServiceAccountRootCAKey]) == 0 {
			return errors.New("it has none")
		}
		return nil
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the token lets in", func(ctx context.Context) error {
		self, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if want := "system:serviceaccount:" + namespace + ":ci"; err == nil && self.Status.UserInfo.Username != want {
			err = fmt.Errorf("it is %q", self.Status.UserInfo.Username)
		}
		return err
	})
}

package apiserver

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	mutatingadmissionpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingadmissionpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	v1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"
	"k8s.io/kubernetes/pkg/serviceaccount"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubject "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"

	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/syncerauth"
	"rik.dev/rik/internal/apiserver/unsupported"
)

const (
	// serviceAccountIssuer is the issuer of tokens. It must never change, because every issued
	// token would become invalid.
	serviceAccountIssuer = "https://rik.local"
	// watchDrainTime is how long watches may take to end when the server stops.
	watchDrainTime = 5 * time.Second
)

// admissionOn are the admission plugins that are useful without Kubernetes' pods and nodes.
var admissionOn = sets.New(
	lifecycle.PluginName,
	mutatingwebhook.PluginName,
	validatingwebhook.PluginName,
	mutatingadmissionpolicy.PluginName,
	validatingadmissionpolicy.PluginName,
	resourcequota.PluginName,
	certapproval.PluginName,
	certsigning.PluginName,
	certsubject.PluginName,
)

// controlPlaneOptions translates our configuration to the options of the generic control plane,
// which kube-apiserver's flags also set.
func controlPlaneOptions(ctx context.Context, cfg Config, creds *credentials, listener net.Listener, store datastore.Endpoint) (options.CompletedOptions, error) {
	o := options.NewOptions()

	o.SecureServing.Listener = listener
	o.SecureServing.ServerCert.CertKey.CertFile = creds.path(serverCertFile)
	o.SecureServing.ServerCert.CertKey.KeyFile = creds.path(serverKeyFile)
	o.SecureServing.MinTLSVersion = "VersionTLS12"
	address, err := advertised(cfg)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	o.GenericServerRunOptions.AdvertiseAddress = address
	o.GenericServerRunOptions.ShutdownSendRetryAfter = true
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchDrainTime

	o.Etcd.StorageConfig.Transport.ServerList = store.Servers
	o.Etcd.StorageConfig.Transport.TrustedCAFile = store.CAFile
	o.Etcd.StorageConfig.Transport.CertFile = store.CertFile
	o.Etcd.StorageConfig.Transport.KeyFile = store.KeyFile
	o.Etcd.EncryptionProviderConfigFilepath = creds.path(encryptionFile)

	o.Authentication.Anonymous.Allow = false // see secure
	o.Authentication.ClientCert.ClientCA = creds.path(clientCAFile)
	o.Authentication.ServiceAccounts.Issuers = []string{serviceAccountIssuer}
	o.Authentication.ServiceAccounts.KeyFiles = []string{creds.path(serviceAccountKeyFile)}
	o.Authentication.ServiceAccounts.OptionalTokenGetter = tokenGetterFrom
	o.ServiceAccountSigningKeyFile = creds.path(serviceAccountKeyFile)
	o.Authorization.Modes = []string{modes.ModeRBAC}
	o.Admission.GenericAdmission.DefaultOffPlugins = sets.New(kubeoptions.AllOrderedPlugins...).Difference(admissionOn)

	if cfg.Profile == ProfileKCP {
		addPlacement(o.Admission.GenericAdmission)
	}
	unsupported.Register(o.Admission.GenericAdmission.Plugins, unsupported.Config{Carries: cfg.Profile == ProfileKCP})
	o.Admission.GenericAdmission.RecommendedPluginOrder = slices.Concat(o.Admission.GenericAdmission.RecommendedPluginOrder, []string{unsupported.PluginName})

	o.Features.EnableProfiling = false
	o.SystemNamespaces = []string{metav1.NamespaceSystem, metav1.NamespaceDefault}

	completed, err := o.Complete(ctx, nil, nil)
	if err != nil {
		return options.CompletedOptions{}, fmt.Errorf("completing the control plane's options: %w", err)
	}
	for _, err := range completed.Validate() {
		return options.CompletedOptions{}, fmt.Errorf("checking the control plane's options: %w", err)
	}
	return completed, nil
}

// addPlacement adds the plugin that allows only permitted users to send objects to clusters.
func addPlacement(admission *genericoptions.AdmissionOptions) {
	syncerauth.Register(admission.Plugins)
	admission.RecommendedPluginOrder = slices.Concat(admission.RecommendedPluginOrder, []string{syncerauth.PluginName})
}

// tokenGetter looks up the objects to which a service account token is bound. There are no
// Kubernetes pods and nodes here, so a token bound to one is invalid.
type tokenGetter struct {
	secrets         v1listers.SecretLister
	serviceAccounts v1listers.ServiceAccountLister
}

func tokenGetterFrom(factory informers.SharedInformerFactory) serviceaccount.ServiceAccountTokenGetter {
	core := factory.Core().V1()
	return tokenGetter{secrets: core.Secrets().Lister(), serviceAccounts: core.ServiceAccounts().Lister()}
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter.
func (g tokenGetter) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return g.serviceAccounts.ServiceAccounts(namespace).Get(name)
}

// GetSecret implements serviceaccount.ServiceAccountTokenGetter.
func (g tokenGetter) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	return g.secrets.Secrets(namespace).Get(name)
}

// GetPod implements serviceaccount.ServiceAccountTokenGetter.
func (g tokenGetter) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("pods"), name)
}

// GetNode implements serviceaccount.ServiceAccountTokenGetter.
func (g tokenGetter) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
}

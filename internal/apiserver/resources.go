package apiserver

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// servedVersions are the stable group-versions of Kubernetes that are useful without its pods
// and nodes. Each served group costs a watch cache.
var servedVersions = []schema.GroupVersion{
	corev1.SchemeGroupVersion,
	admissionregistrationv1.SchemeGroupVersion,
	authenticationv1.SchemeGroupVersion,
	authorizationv1.SchemeGroupVersion,
	certificatesv1.SchemeGroupVersion,
	coordinationv1.SchemeGroupVersion,
	eventsv1.SchemeGroupVersion,
	flowcontrolv1.SchemeGroupVersion,
	rbacv1.SchemeGroupVersion,
}

// notCollected are the resources that the garbage collector ignores. A million instances would
// all be in its graph. rik's own controller cascades their deletion instead.
var notCollected = []schema.GroupResource{
	{Group: rikv1alpha1.SchemeGroupVersion.Group, Resource: "instances"},
	{Group: rikv1alpha1.SchemeGroupVersion.Group, Resource: "workloadrevisions"},
}

// rikPriority puts rik.dev before every other group, so that `kubectl get nodes` returns rik's
// nodes.
var rikPriority = controlplaneapiserver.APIServicePriority{Group: 19000, Version: 15}

// appsPriority is kube-apiserver's priority of apps/v1.
var appsPriority = controlplaneapiserver.APIServicePriority{Group: 17800, Version: 15}

func resourceConfig(profile Profile) *serverstorage.ResourceConfig {
	config := serverstorage.NewResourceConfig()
	config.EnableVersions(servedVersions...)
	if profile == ProfileCluster {
		config.EnableVersions(rikv1alpha1.SchemeGroupVersion, appsv1.SchemeGroupVersion)
	}
	return config
}

// priorities returns every group-version that appears in discovery. A group-version that is
// missing here is served, but clients do not find it.
func priorities() map[schema.GroupVersion]controlplaneapiserver.APIServicePriority {
	all := controlplaneapiserver.DefaultGenericAPIServicePriorities()
	all[rikv1alpha1.SchemeGroupVersion] = rikPriority
	all[appsv1.SchemeGroupVersion] = appsPriority
	return all
}

// Package inherit decides which labels and annotations an object copies from the object that it
// is made from. A leaf is made from its root, a Workload from its Deployment, and the copy in a
// member cluster from the object in the kcp.
//
// All labels and annotations are copied, except marks. A mark is a label or an annotation in which
// a deployment tool or an autoscaler stores its own state. Examples are the applied configuration,
// the release or inventory of the object, and its earlier number of replicas. On an object that
// the tool did not make, a mark makes the tool prune it, adopt it, or scale it wrongly.
package inherit

import (
	"slices"
	"strings"
)

// Copy returns the labels or annotations that are inherited. The result is never nil and is the
// caller's.
func Copy(from map[string]string) map[string]string {
	out := make(map[string]string, len(from))
	for key, value := range from {
		if !IsMark(key, value) {
			out[key] = value
		}
	}
	return out
}

// InstanceLabel names the application that an object belongs to. By default Argo CD 2 deletes
// objects that have it, have no owner, and are not in the application's source. It is no mark
// for [IsMark], because Services and others are selected by it.
const InstanceLabel = "app.kubernetes.io/instance"

// managedBy names the tool that manages an object. Helm adopts objects by it.
const managedBy = "app.kubernetes.io/managed-by"

// IsMark reports whether a label or an annotation is a mark.
func IsMark(key, value string) bool {
	if key == managedBy {
		return slices.Contains(tools, strings.ToLower(value))
	}
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		return slices.Contains(bareKeys, key)
	}
	return !slices.Contains(settings, key) && (isOfTool(prefix) || slices.Contains(keys, key) || slices.Contains(names, name) ||
		strings.HasPrefix(name, "last-applied") || strings.HasPrefix(name, "last-handled"))
}

// isOfTool reports whether a prefix is a tool's own.
func isOfTool(prefix string) bool {
	return slices.Contains(prefixes, prefix) ||
		slices.ContainsFunc(domains, func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) })
}

// tools are values of managedBy: tools that deploy what a user wrote. Operators, which name
// themselves too, are not among them.
var tools = []string{
	"argocd", "argo-cd", "cdk8s", "config-sync", "configmanagement.gke.io", "fleet", "flux", "fluxcd", "google-cloud-deploy", "helm", "helmfile",
	"kapp", "kluctl", "kubectl", "kustomize", "pulumi", "skaffold", "spinnaker", "terraform", "tilt", "timoni", "werf",
}

// prefixes are those of tools' own keys. All keys below one are marks, but for settings.
var prefixes = []string{
	"applyset.kubernetes.io", // kubectl apply --prune --applyset
	"meta.helm.sh", "helm.sh",
	"argocd.argoproj.io",
	"kustomize.toolkit.fluxcd.io", "helm.toolkit.fluxcd.io", "fluxcd.io",
	"objectset.rio.cattle.io", "fleet.cattle.io", // k3s and Rancher prune by them
	"kluctl.io", "project.werf.io", "pulumi.com", "skaffold.dev", "tilt.dev", "timoni.sh", "werf.io",
	"cli-utils.sigs.k8s.io", "config.k8s.io", "config.kubernetes.io", "internal.config.kubernetes.io", // kpt and kustomize
	"aws.cdk.eks", "configmanagement.gke.io", "configsync.gke.io", "deploy.cloud.google.com",
	"addon.kops.k8s.io", "addonmanager.kubernetes.io", "addons.k8s.io",
	"operator-sdk",                 // an owner in another namespace
	"kopf.dev", "kopf.zalando.org", // an operator's notes about the object
	"downscaler", "hpa.autoscaling.banzaicloud.io", // they set replicas
	"cleanup.kyverno.io", "janitor", // they delete what is too old
}

// domains are tools' own with all prefixes below them.
var domains = []string{"k14s.io", "spinnaker.io"}

// keys are single marks, under prefixes that have other keys too.
var keys = []string{
	"deployment.kubernetes.io/desired-replicas", "deployment.kubernetes.io/max-replicas",
	"deployment.kubernetes.io/revision", "deployment.kubernetes.io/revision-history",
	"autoscaling.alpha.kubernetes.io/conditions", "autoscaling.alpha.kubernetes.io/current-metrics",
	"scaledjob.keda.sh/name", "scaledobject.keda.sh/name",
	"crossplane.io/claim-name", "crossplane.io/claim-namespace", "crossplane.io/composite", "crossplane.io/composition-resource-name",
}

// bareKeys are marks without a prefix.
var bareKeys = []string{"deprecated.daemonset.template.generation", "olm.managed", "olm.owner", "olm.owner.kind", "olm.owner.namespace"}

// names are marks whatever their prefix is.
var names = []string{
	"applied-hash", "applyset", "discriminator", "inventory-id", "original-replicas", "owning-inventory", "release-name", "release-namespace", "tracking-id",
}

// settings are keys under prefixes of tools. They configure what a tool in the member cluster does
// with the object, and do not store who made it.
var settings = []string{"argocd.argoproj.io/refresh", "argocd.argoproj.io/secret-type"}

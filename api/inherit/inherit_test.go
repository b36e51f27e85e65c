package inherit

import (
	"maps"
	"testing"
)

func TestIsMark(t *testing.T) {
	t.Parallel()
	for key, value := range map[string]string{
		"applyset.kubernetes.io/part-of":                   "applyset-x-v1",
		"applyset.kubernetes.io/id":                        "applyset-x-v1",
		"kubectl.kubernetes.io/last-applied-configuration": "{}",
		"banzaicloud.com/last-applied":                     "{}",
		"app.kubernetes.io/managed-by":                     "Helm",
		"meta.helm.sh/release-name":                        "web",
		"helm.sh/resource-policy":                          "keep",
		"argocd.argoproj.io/tracking-id":                   "shop:apps/Deployment:shop/web",
		"argocd.argoproj.io/instance":                      "shop",
		"kustomize.toolkit.fluxcd.io/name":                 "shop",
		"helm.toolkit.fluxcd.io/namespace":                 "flux",
		"objectset.rio.cattle.io/hash":                     "1",
		"kapp.k14s.io/app":                                 "1",
		"config.k8s.io/owning-inventory":                   "1",
		"kluctl.io/discriminator":                          "x",
		"tool.example.com/tracking-id":                     "x",
		"deployment.kubernetes.io/desired-replicas":        "3",
		"downscaler/original-replicas":                     "3",
		"sleep.example.com/original-replicas":              "3",
		"autoscaling.alpha.kubernetes.io/current-metrics":  "[]",
		"moniker.spinnaker.io/application":                 "x",
		"olm.owner":                                        "x",
	} {
		if !IsMark(key, value) {
			t.Errorf("IsMark(%q, %q) = false", key, value)
		}
	}
	for key, value := range map[string]string{
		"app":                                     "web",
		"release":                                 "prometheus",
		"app.kubernetes.io/name":                  "web",
		"app.kubernetes.io/part-of":               "shop",
		"app.kubernetes.io/managed-by":            "shop-operator",
		InstanceLabel:                             "web",
		"example.com/team":                        "a",
		"reloader.stakater.com/auto":              "true",
		"argocd.argoproj.io/secret-type":          "cluster",
		"kubernetes.io/change-cause":              "v2",
		"last-applied":                            "mine",
		"workloads.kcp.dev/cluster":               "east",
		"autoscaling.alpha.kubernetes.io/metrics": "[]",
		"meta.helm.sh":                            "no prefix",
	} {
		if IsMark(key, value) {
			t.Errorf("IsMark(%q, %q) = true", key, value)
		}
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	from := map[string]string{"app": "web", "meta.helm.sh/release-name": "web"}
	got := Copy(from)
	if want := map[string]string{"app": "web"}; !maps.Equal(got, want) {
		t.Errorf("Copy() = %v, want %v", got, want)
	}
	if len(from) != 2 || Copy(nil) == nil {
		t.Errorf("Copy() changed its argument to %v, or is nil of nothing", from)
	}
}

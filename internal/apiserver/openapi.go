package apiserver

import (
	"crypto/rand"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/util"
	"k8s.io/kube-openapi/pkg/validation/spec"
	kubernetes "k8s.io/kubernetes/pkg/generated/openapi"

	"rik.dev/rik/internal/apiserver/apis/openapi"
	"rik.dev/rik/internal/version"
)

// describedPrefixes are the packages of what is served, by their names in an
// OpenAPI document. Kubernetes describes some 2,000 types, most of them of
// groups that are not served here, and the server keeps what it is given.
var describedPrefixes = []string{
	"io.k8s.apimachinery.",
	"io.k8s.apiextensions-apiserver.",
	"io.k8s.kube-aggregator.",
	"io.k8s.api.core.v1.",
	"io.k8s.api.admissionregistration.v1.",
	"io.k8s.api.apps.v1.",
	"io.k8s.api.authentication.v1.",
	"io.k8s.api.authorization.v1.",
	"io.k8s.api.autoscaling.v1.",
	"io.k8s.api.certificates.v1.",
	"io.k8s.api.coordination.v1.",
	"io.k8s.api.events.v1.",
	"io.k8s.api.flowcontrol.v1.",
	"io.k8s.api.policy.v1.",
	"io.k8s.api.rbac.v1.",
}

// definitions describes every type that is served.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := kubernetes.GetOpenAPIDefinitions(ref)
	served := make(map[string]common.OpenAPIDefinition, len(all)/2)
	for name, definition := range all {
		if isDescribed(name) {
			served[name] = definition
		}
	}
	completeDependencies(served, all)
	// References go by the published name, keys and dependencies by the key.
	ours := openapi.GetOpenAPIDefinitions(func(path string) spec.Ref { return ref(util.ToRESTFriendlyName(path)) })
	for name, definition := range ours {
		for i, dependency := range definition.Dependencies {
			definition.Dependencies[i] = modelName(dependency)
		}
		served[name] = definition
	}
	return served
}

func isDescribed(name string) bool {
	for _, prefix := range describedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return !strings.HasPrefix(name, "io.k8s.api.")
}

// completeDependencies adds what the served definitions refer to.
func completeDependencies(served, all map[string]common.OpenAPIDefinition) {
	var pending []string
	for _, definition := range served {
		pending = append(pending, definition.Dependencies...)
	}
	for len(pending) > 0 {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if _, done := served[name]; done {
			continue
		}
		definition, known := all[name]
		if !known {
			continue // the server's own check names it better
		}
		served[name] = definition
		pending = append(pending, definition.Dependencies...)
	}
}

// modelName is how Kubernetes' own definitions call a type: since 1.35 not by
// its Go name, which is what our generated code refers to.
func modelName(path string) string {
	if strings.HasPrefix(path, "k8s.io/") {
		return util.ToRESTFriendlyName(path)
	}
	return path
}

// documentTag is another one with each build and each profile, on which the documents of
// the native types depend. Of a build that is not a commit's it is another one each time.
func documentTag(profile Profile) string {
	if version.Commit == "" || version.Dirty == "true" {
		return rand.Text()
	}
	return version.Commit + "-" + string(profile)
}

// namesOurs lets a namer of Kubernetes' recognize our types. It knows every
// type by the REST-friendly form of its Go name, and so adds the group, version
// and kind, without which there is no server-side apply; but it is asked for
// the Go name where, as in ours, a type does not say what it is called.
func namesOurs(next func(string) (string, spec.Extensions)) func(string) (string, spec.Extensions) {
	return func(name string) (string, spec.Extensions) {
		if strings.HasPrefix(name, "rik.dev/") {
			name = util.ToRESTFriendlyName(name)
		}
		return next(name)
	}
}

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

// describedPrefixes are the served packages, by their names in an OpenAPI document. Kubernetes
// describes about 2,000 types, most of them in groups that are not served here, and the server
// keeps all that it receives in memory.
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

// definitions returns the definitions of all served types.
func definitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := kubernetes.GetOpenAPIDefinitions(ref)
	served := make(map[string]common.OpenAPIDefinition, len(all)/2)
	for name, definition := range all {
		if isDescribed(name) {
			served[name] = definition
		}
	}
	completeDependencies(served, all)
	// References use the published name, keys and dependencies use the key.
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

// completeDependencies adds the types to which the served definitions refer.
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
			continue // the server's own check gives a better error
		}
		served[name] = definition
		pending = append(pending, definition.Dependencies...)
	}
}

// modelName returns the name of a type in Kubernetes' own definitions. Since 1.35 that is not
// its Go name, to which our generated code refers.
func modelName(path string) string {
	if strings.HasPrefix(path, "k8s.io/") {
		return util.ToRESTFriendlyName(path)
	}
	return path
}

// documentTag returns a tag for the documents of the native types. It differs for each build
// and profile. For a build that is not of a clean commit it differs at each start.
func documentTag(profile Profile) string {
	if version.Commit == "" || version.Dirty == "true" {
		return rand.Text()
	}
	return version.Commit + "-" + string(profile)
}

// namesOurs makes a namer of Kubernetes recognize our types. The namer has every type under the
// REST-friendly form of its Go name, and adds the group, version and kind, without which
// server-side apply does not work. It is called with the Go name for types that do not declare
// a name, such as ours.
func namesOurs(next func(string) (string, spec.Extensions)) func(string) (string, spec.Extensions) {
	return func(name string) (string, spec.Extensions) {
		if strings.HasPrefix(name, "rik.dev/") {
			name = util.ToRESTFriendlyName(name)
		}
		return next(name)
	}
}

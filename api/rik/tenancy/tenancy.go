// Package tenancy says which resources a tenant's users may be given, and what of
// them: no more than Kubernetes' role edit gives in a namespace, and never a way to
// more. What is not here cannot be given by a Tenant; a RoleBinding of an
// administrator still can.
package tenancy

import (
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// All is the name that stands for every resource, and for every verb.
const All = "*"

// Resource is one that a tenant's user may be given.
type Resource struct {
	// Group of its API, empty for the core.
	Group string
	// Name in the plural, with the subresource.
	Name string
	// ReadOnly is one that only the system writes: what it says is believed, about
	// others too.
	ReadOnly bool
}

const rik = rikv1alpha1.GroupName

// resources are sorted by group, then by what may be done with them.
var resources = []Resource{
	{Group: rik, Name: "workloads"}, {Group: rik, Name: "workloads/scale"},
	{Group: rik, Name: "instances"},
	{Group: rik, Name: "instances/exec"}, {Group: rik, Name: "instances/portforward"},
	{Group: rik, Name: "instances/suspend"}, {Group: rik, Name: "instances/resume"},
	{Group: rik, Name: "workloads/status", ReadOnly: true}, {Group: rik, Name: "workloadrevisions", ReadOnly: true},
	{Group: rik, Name: "instances/status", ReadOnly: true}, {Group: rik, Name: "instances/log", ReadOnly: true},
	{Name: "configmaps"}, {Name: "secrets"}, {Name: "serviceaccounts"},
	{Name: "events", ReadOnly: true},
	{Group: "apps", Name: "deployments"}, {Group: "apps", Name: "deployments/scale"},
	{Group: "apps", Name: "deployments/status", ReadOnly: true},
	{Group: "events.k8s.io", Name: "events", ReadOnly: true},
}

// Granted are the resources that a right to a name brings: a resource with its
// subresources, one subresource, or all of them by "*". It is empty for a name that
// cannot be given.
func Granted(name string) []Resource {
	var out []Resource
	for _, r := range resources {
		if name == All || r.Name == name || strings.HasPrefix(r.Name, name+"/") {
			out = append(out, r)
		}
	}
	return out
}

// Names are those that Granted knows, in the order of the alphabet.
func Names() []string {
	out := []string{All}
	for _, r := range resources {
		out = append(out, r.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

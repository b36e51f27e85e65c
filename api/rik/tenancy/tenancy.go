// Package tenancy lists the resources to which a Tenant can give its users rights. They are at
// most those of Kubernetes' role edit in a namespace, and give no way to more rights. An
// administrator can give rights on other resources with a RoleBinding.
package tenancy

import (
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// All is the name for all resources, and for all verbs.
const All = "*"

// Resource is a resource on which a user of a tenant can have rights.
type Resource struct {
	// Group is the API group, empty for the core group.
	Group string
	// Name is the name in the plural, with the subresource.
	Name string
	// ReadOnly means that only the system writes the resource, because other components and
	// users trust its content.
	ReadOnly bool
}

const rik = rikv1alpha1.GroupName

// resources lists all resources, by group and then by the rights on them.
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

// Granted returns the resources to which a name gives rights: a resource with its subresources, one
// subresource, or all for "*". It returns none for a name that a Tenant cannot use.
func Granted(name string) []Resource {
	var out []Resource
	for _, r := range resources {
		if name == All || r.Name == name || strings.HasPrefix(r.Name, name+"/") {
			out = append(out, r)
		}
	}
	return out
}

// Names returns the names that Granted accepts, sorted.
func Names() []string {
	out := []string{All}
	for _, r := range resources {
		out = append(out, r.Name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

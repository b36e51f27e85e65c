package validation

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/reference"
)

// Privileges lists the fields of a template that give an instance access outside of its sandbox.
// Only users whom an administrator trusts with a node may use them. at is the path of the
// template in its object.
func Privileges(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	var errs field.ErrorList
	need := func(where *field.Path, needed bool, why string) {
		if needed {
			errs = append(errs, field.Forbidden(where, why))
		}
	}
	need(at.Child("hostNetwork"), t.HostNetwork, "uses the node's network")
	need(at.Child("priority"), t.Priority > 0, "can preempt instances of other users")
	need(at.Child("app"), t.App != nil, "runs a process on the node itself")
	need(at.Child("app", "user"), t.App != nil && rootUser(t.App.User), "runs that process as the node's root")
	if t.Function != nil {
		e := t.Function.Execution
		need(at.Child("function", "execution", "rootfs"), strings.HasPrefix(e.Rootfs, "/"), "reads a file of the node")
		need(at.Child("function", "execution", "image"), local(e.Image), "reads a file of the node")
	}
	for i := range t.Volumes {
		need(at.Child("volumes").Index(i).Child("hostPath"), t.Volumes[i].HostPath != nil, "accesses files of the node")
	}
	for name, list := range map[string][]rik.Container{"containers": t.Containers, "initContainers": t.InitContainers} {
		for i := range list {
			here, c := at.Child(name).Index(i), &list[i]
			need(here.Child("image"), local(c.Image), "reads a file of the node")
			if c.Security != nil {
				need(here.Child("security", "privileged"), c.Security.Privileged, "removes every protection")
				need(here.Child("security", "addCapabilities"), len(c.Security.AddCapabilities) > 0, "adds capabilities beyond the default set")
			}
		}
	}
	return sorted(errs)
}

func local(image string) bool {
	ref, err := reference.Parse(image)
	return err == nil && ref.Local()
}

// rootUser reports whether a user, with or without a group, is root.
func rootUser(name string) bool {
	name, _, _ = strings.Cut(name, ":")
	uid, err := strconv.ParseUint(name, 10, 32)
	return name == "root" || err == nil && uid == 0
}

// Warnings returns warnings about a valid workload.
func Warnings(s *rik.WorkloadSpec) []string {
	var out []string
	t := &s.InstanceTemplate
	if f := t.Function; f != nil && strings.HasPrefix(f.Execution.Rootfs, "http://") {
		text := specPath.Child("function", "execution", "rootfs").String() + ": only nodes that allow http:// download this URL; use https://"
		if f.Execution.SHA256 == "" {
			text += ", or set sha256: otherwise anyone on the network path can change the root file system"
		}
		out = append(out, text)
	}
	if t.App != nil && rootUser(t.App.User) {
		out = append(out, specPath.Child("app", "user").String()+": the process runs as root on its node and is not restricted there")
	}
	return out
}

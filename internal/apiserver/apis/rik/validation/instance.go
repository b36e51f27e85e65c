package validation

import (
	"cmp"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

var phases = []rik.InstancePhase{
	rik.InstancePending, rik.InstanceCreating, rik.InstanceRunning, rik.InstanceCompleted,
	rik.InstanceFailed, rik.InstanceDestroying, rik.InstanceTerminated, rik.InstanceUnknown,
}

// Instance validates a new instance. Its name is a DNS label, because it is also the host name in
// the instance.
func Instance(i *rik.Instance) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&i.ObjectMeta, true, apivalidation.NameIsDNSLabel, metadata)
	errs = append(errs, label(specPath.Child("workload"), i.Spec.Workload)...)
	if i.Spec.Revision != "" {
		errs = append(errs, label(specPath.Child("revision"), i.Spec.Revision)...)
	}
	errs = append(errs, unsupported(specPath.Child("nodeName"), i.Spec.NodeName != "", "is set by the scheduler: use nodeSelector or affinity in the workload to choose a node")...)
	if len(i.Spec.Replaces) > 64 {
		errs = append(errs, field.TooLong(specPath.Child("replaces"), "", 64))
	}
	return sorted(errs)
}

// InstanceUpdate validates an update. A request can set the node once. It cannot change any other
// field of the spec.
func InstanceUpdate(i, old *rik.Instance) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&i.ObjectMeta, &old.ObjectMeta, metadata)
	allowed := old.Spec
	allowed.NodeName = cmp.Or(allowed.NodeName, i.Spec.NodeName)
	if i.Spec != allowed {
		at := specPath
		if i.Spec.NodeName != allowed.NodeName {
			at = specPath.Child("nodeName")
		}
		errs = append(errs, field.Forbidden(at, "must not change after the binding: a replacement is a new instance"))
	}
	if i.Spec.NodeName != "" {
		errs = append(errs, subdomain(specPath.Child("nodeName"), i.Spec.NodeName)...)
	}
	return sorted(append(errs, instanceStatus(&i.Status)...))
}

// InstanceStatusUpdate validates the reported status of an instance.
func InstanceStatusUpdate(i, old *rik.Instance) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&i.ObjectMeta, &old.ObjectMeta, metadata)
	return sorted(append(errs, instanceStatus(&i.Status)...))
}

func instanceStatus(s *rik.InstanceStatus) field.ErrorList {
	var errs field.ErrorList
	if s.Phase != "" {
		errs = append(errs, among(statusPath.Child("phase"), s.Phase, phases...)...)
	}
	for name, list := range map[string][]rik.ContainerStatus{"containers": s.Containers, "initContainers": s.InitContainers} {
		names := seen{}
		for i := range list {
			here := statusPath.Child(name).Index(i)
			errs = append(errs, label(here.Child("name"), list[i].Name)...)
			errs = append(errs, names.add(here.Child("name"), list[i].Name)...)
			if state := list[i].State; state != "" {
				errs = append(errs, among(here.Child("state"), state, rik.ContainerWaiting, rik.ContainerRunning, rik.ContainerExited)...)
			}
		}
	}
	return errs
}

package validation

import (
	"fmt"
	"net/netip"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

// Node validates a new node. Its name has at most 63 bytes, because it is also the value of a
// label.
func Node(n *rik.Node) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&n.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, metadata)
	if len(n.Name) > MaxNameInNamespace {
		errs = append(errs, field.TooLong(metadata.Child("name"), n.Name, MaxNameInNamespace))
	}
	return sorted(append(errs, nodeSpec(&n.Spec)...))
}

// NodeUpdate validates a change of a node by an administrator. The node's address range cannot
// change, because instances have addresses of it.
func NodeUpdate(n, old *rik.Node) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&n.ObjectMeta, &old.ObjectMeta, metadata)
	if old.Spec.PodCIDR != "" && n.Spec.PodCIDR != old.Spec.PodCIDR {
		errs = append(errs, field.Forbidden(specPath.Child("podCIDR"), "must not change after it is set"))
	}
	return sorted(append(errs, nodeSpec(&n.Spec)...))
}

func nodeSpec(s *rik.NodeSpec) field.ErrorList {
	at := specPath.Child("taints")
	errs := atMost(at, len(s.Taints), MaxTaints)
	unique := seen{}
	for i, t := range s.Taints {
		errs = append(errs, qualified(at.Index(i).Child("key"), t.Key)...)
		errs = append(errs, messages(at.Index(i).Child("value"), t.Value, validation.IsValidLabelValue(t.Value))...)
		errs = append(errs, among(at.Index(i).Child("effect"), t.Effect, effects...)...)
		errs = append(errs, unique.add(at.Index(i), t.Key+":"+string(t.Effect))...)
	}
	if s.PodCIDR != "" {
		errs = append(errs, cidr(specPath.Child("podCIDR"), s.PodCIDR)...)
	}
	return errs
}

func cidr(at *field.Path, value string) field.ErrorList {
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return field.ErrorList{field.Invalid(at, value, "must be an address range such as 10.42.3.0/24")}
	}
	if masked := prefix.Masked(); masked != prefix {
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("must be written as %s", masked))}
	}
	return nil
}

// NodeStatusUpdate validates the status that a node reports.
func NodeStatusUpdate(n, old *rik.Node) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&n.ObjectMeta, &old.ObjectMeta, metadata)
	return sorted(append(errs, NodeStatus(n)...))
}

// NodeStatus validates the status that the controller writes for a node.
func NodeStatus(n *rik.Node) field.ErrorList {
	var errs field.ErrorList
	known := []rik.ResourceName{rik.ResourceCPU, rik.ResourceMemory, rik.ResourceDisk, rik.ResourceInstances}
	errs = append(errs, amounts(statusPath.Child("capacity"), n.Status.Capacity, known...)...)
	errs = append(errs, amounts(statusPath.Child("allocatable"), n.Status.Allocatable, known...)...)
	info := statusPath.Child("info")
	for i, k := range n.Status.Info.Kinds {
		errs = append(errs, among(info.Child("kinds").Index(i), k, rik.KindPod, rik.KindFunction, rik.KindApp)...)
	}
	for name, address := range map[string]string{"internalAddress": n.Status.Info.InternalAddress, "externalAddress": n.Status.Info.ExternalAddress} {
		if _, err := netip.ParseAddr(address); address != "" && err != nil {
			errs = append(errs, field.Invalid(info.Child(name), address, "must be an IP address"))
		}
	}
	return sorted(append(errs, conditions(n.Status.Conditions)...))
}

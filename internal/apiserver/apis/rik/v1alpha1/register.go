package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// SchemeGroupVersion is the group and version that this package converts.
var SchemeGroupVersion = rikv1alpha1.SchemeGroupVersion

var (
	localSchemeBuilder = runtime.NewSchemeBuilder(rikv1alpha1.AddToScheme, addDefaultingFuncs, addFieldLabels)
	// AddToScheme registers the served types with their defaults, conversions and field
	// selectors.
	AddToScheme = localSchemeBuilder.AddToScheme
)

func addDefaultingFuncs(scheme *runtime.Scheme) error {
	return RegisterDefaults(scheme)
}

// fieldLabels lists the fields that a field selector may name, by kind.
var fieldLabels = map[string][]string{
	"Workload":         {"metadata.name", "metadata.namespace"},
	"WorkloadRevision": {"metadata.name", "metadata.namespace"},
	"Instance":         {"metadata.name", "metadata.namespace", "spec.nodeName", "spec.workload", "spec.revision", "status.phase"},
	"Node":             {"metadata.name"},
	"Tenant":           {"metadata.name"},
}

func addFieldLabels(scheme *runtime.Scheme) error {
	for kind, labels := range fieldLabels {
		allowed := map[string]bool{}
		for _, l := range labels {
			allowed[l] = true
		}
		convert := func(label, value string) (string, string, error) {
			if !allowed[label] {
				return "", "", fmt.Errorf("%q is not a field selector of %s; the field selectors are %v", label, kind, labels)
			}
			return label, value, nil
		}
		if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind(kind), convert); err != nil {
			return fmt.Errorf("registering the field selectors of %s: %w", kind, err)
		}
	}
	return nil
}

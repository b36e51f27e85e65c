// Package v1alpha1 connects the served types of rik.dev/v1alpha1 with the hub types. It has their
// defaults, their conversions and the field selectors that a request may use.
//
// +k8s:conversion-gen=rik.dev/rik/internal/apiserver/apis/rik
// +k8s:conversion-gen-external-types=rik.dev/rik/api/rik/v1alpha1
// +k8s:defaulter-gen=TypeMeta
// +k8s:defaulter-gen-input=rik.dev/rik/api/rik/v1alpha1
// +groupName=rik.dev
package v1alpha1

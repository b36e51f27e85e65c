// Package v1alpha1 joins the published types of rik.dev/v1alpha1 to the hub
// types: defaults, conversion and the field selectors that a request may use.
//
// +k8s:conversion-gen=rik.dev/rik/internal/apiserver/apis/rik
// +k8s:conversion-gen-external-types=rik.dev/rik/api/rik/v1alpha1
// +k8s:defaulter-gen=TypeMeta
// +k8s:defaulter-gen-input=rik.dev/rik/api/rik/v1alpha1
// +groupName=rik.dev
package v1alpha1

package apiserver

import (
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	// Kubernetes' types register themselves in legacyscheme when imported. These
	// are the groups of servedVersions, and those that they convert from.
	_ "k8s.io/kubernetes/pkg/apis/admission/install"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"

	"rik.dev/rik/internal/apiserver/apis/rik/install"
)

// init adds the types of rik.dev to Kubernetes' scheme, once for the process. Like Kubernetes'
// packages, it does so before any code uses the scheme, because the scheme has no lock.
func init() { install.Install(legacyscheme.Scheme) }

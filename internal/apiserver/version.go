package apiserver

import (
	"cmp"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"

	"rik.dev/rik/internal/version"
)

// ours reports the version of Kubernetes' API together with rik's. Kubernetes' own version
// would have to be set by the linker, because its source does not contain it.
type ours struct{ compatibility.EffectiveVersion }

// Info returns the content of /version.
func (o ours) Info() *apiversion.Info {
	info := o.EffectiveVersion.Info()
	if info == nil {
		return nil
	}
	reported := *info
	reported.GitVersion, reported.GitCommit = version.Served(), version.Commit
	reported.BuildDate = cmp.Or(version.Date, reported.BuildDate)
	reported.GitTreeState = ""
	if version.Commit != "" {
		reported.GitTreeState = "clean"
		if version.Dirty == "true" {
			reported.GitTreeState = "dirty"
		}
	}
	return &reported
}

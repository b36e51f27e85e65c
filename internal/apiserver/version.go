package apiserver

import (
	"cmp"

	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"

	"rik.dev/rik/internal/version"
)

// ours is the version of Kubernetes' API with rik's in what clients are told.
// Kubernetes' own would have to be set by the linker, for its source has none.
type ours struct{ compatibility.EffectiveVersion }

// Info is what /version serves.
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

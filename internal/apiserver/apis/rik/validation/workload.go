package validation

import (
	"slices"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/api/rik/revision"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

var (
	metadata   = field.NewPath("metadata")
	specPath   = field.NewPath("spec")
	statusPath = field.NewPath("status")
)

// Workload validates a new workload.
func Workload(w *rik.Workload) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&w.ObjectMeta, true, apivalidation.NameIsDNSLabel, metadata)
	if len(w.Name) > revision.MaxWorkloadName {
		errs = append(errs, field.TooLong(metadata.Child("name"), w.Name, revision.MaxWorkloadName))
	}
	if w.Name == "" && len(w.GenerateName) > revision.MaxWorkloadName-5 {
		// The server appends five random characters.
		errs = append(errs, field.TooLong(metadata.Child("generateName"), w.GenerateName, revision.MaxWorkloadName-5))
	}
	return sorted(append(errs, workloadSpec(&w.Spec)...))
}

// WorkloadUpdate validates an update of a workload.
func WorkloadUpdate(w, old *rik.Workload) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&w.ObjectMeta, &old.ObjectMeta, metadata)
	spec := workloadSpec(&w.Spec)
	if a, b := w.Spec.App, old.Spec.App; a != nil && b != nil && a.Repo == b.Repo && a.Version == b.Version {
		// The address was stored before a rule against it existed. Other fields can still
		// change.
		repo, version := specPath.Child("app", "repo").String(), specPath.Child("app", "version").String()
		spec = slices.DeleteFunc(spec, func(e *field.Error) bool { return e.Field == repo || e.Field == version })
	}
	return sorted(append(errs, spec...))
}

// WorkloadStatusUpdate validates the status of a workload.
func WorkloadStatusUpdate(w, old *rik.Workload) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&w.ObjectMeta, &old.ObjectMeta, metadata)
	s := &w.Status
	for name, count := range map[string]int32{
		"replicas": s.Replicas, "readyReplicas": s.ReadyReplicas, "updatedReplicas": s.UpdatedReplicas,
		"pendingReplicas": s.PendingReplicas, "failedReplicas": s.FailedReplicas, "completedReplicas": s.CompletedReplicas,
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(count), statusPath.Child(name))...)
	}
	return sorted(append(errs, conditions(s.Conditions)...))
}

func conditions(c []metav1.Condition) field.ErrorList {
	return metav1validation.ValidateConditions(c, statusPath.Child("conditions"))
}

func workloadSpec(s *rik.WorkloadSpec) field.ErrorList {
	errs := among(specPath.Child("deploy"), s.Deploy, rik.DeployManual, rik.DeployAutomatic)
	if s.Replicas != nil {
		errs = append(errs, within(specPath.Child("replicas"), *s.Replicas, 0, MaxReplicas)...)
	}
	errs = append(errs, strategy(specPath.Child("strategy"), &s.Strategy)...)
	errs = append(errs, share(specPath.Child("disruption", "maxUnavailable"), s.Disruption.MaxUnavailable, 100)...)
	if s.RevisionHistoryLimit != nil {
		errs = append(errs, within(specPath.Child("revisionHistoryLimit"), *s.RevisionHistoryLimit, 0, MaxHistory)...)
	}
	if s.ReplaceAfterSeconds != nil {
		errs = append(errs, within(specPath.Child("replaceAfterSeconds"), *s.ReplaceAfterSeconds, 0, MaxSeconds)...)
	}
	return append(errs, template(specPath, &s.InstanceTemplate)...)
}

func strategy(at *field.Path, s *rik.UpdateStrategy) field.ErrorList {
	errs := among(at.Child("type"), s.Type, rik.RollingUpdate, rik.Recreate)
	if s.ProgressDeadlineSeconds != nil {
		errs = append(errs, within(at.Child("progressDeadlineSeconds"), *s.ProgressDeadlineSeconds, 1, MaxSeconds)...)
	}
	if s.Type == rik.Recreate {
		const why = "has no effect with type Recreate"
		errs = append(errs, unsupported(at.Child("maxSurge"), s.MaxSurge != nil, why)...)
		return append(errs, unsupported(at.Child("maxUnavailable"), s.MaxUnavailable != nil, why)...)
	}
	errs = append(errs, share(at.Child("maxSurge"), s.MaxSurge, 1000)...)
	errs = append(errs, share(at.Child("maxUnavailable"), s.MaxUnavailable, 100)...)
	if shareIsZero(s.MaxSurge) && shareIsZero(s.MaxUnavailable) {
		errs = append(errs, field.Invalid(at.Child("maxUnavailable"), s.MaxUnavailable.String(), "must not be 0 when maxSurge is 0, because then no instance can be replaced"))
	}
	return errs
}

// Revision validates a new revision.
func Revision(r *rik.WorkloadRevision) field.ErrorList {
	errs := apivalidation.ValidateObjectMeta(&r.ObjectMeta, true, apivalidation.NameIsDNSLabel, metadata)
	errs = append(errs, apivalidation.ValidateNonnegativeField(r.Revision, field.NewPath("revision"))...)
	return sorted(append(errs, template(field.NewPath("template"), &r.Template)...))
}

// RevisionUpdate validates an update of a revision. Only its number and its metadata can change.
func RevisionUpdate(r, old *rik.WorkloadRevision) field.ErrorList {
	errs := apivalidation.ValidateObjectMetaUpdate(&r.ObjectMeta, &old.ObjectMeta, metadata)
	errs = append(errs, apivalidation.ValidateImmutableField(r.Template, old.Template, field.NewPath("template"))...)
	if r.Revision < old.Revision {
		errs = append(errs, field.Invalid(field.NewPath("revision"), r.Revision, "must not decrease"))
	}
	return sorted(errs)
}

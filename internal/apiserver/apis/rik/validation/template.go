package validation

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
)

func template(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	errs := among(at.Child("kind"), t.Kind, rik.KindPod, rik.KindFunction, rik.KindApp)
	errs = append(errs, byKind(at, t)...)
	errs = append(errs, isolation(at, t)...)
	errs = append(errs, templateMetadata(at, t)...)
	errs = append(errs, among(at.Child("restartPolicy"), t.RestartPolicy, rik.RestartAlways, rik.RestartOnFailure, rik.RestartNever)...)
	errs = append(errs, among(at.Child("onDisconnect"), t.OnDisconnect, rik.DisconnectKeep, rik.DisconnectStop)...)
	if t.TerminationGracePeriodSeconds != nil {
		errs = append(errs, within(at.Child("terminationGracePeriodSeconds"), *t.TerminationGracePeriodSeconds, 0, MaxGraceSeconds)...)
	}
	if t.Hostname != "" {
		errs = append(errs, label(at.Child("hostname"), t.Hostname)...)
	}
	if t.Runtime != "" {
		errs = append(errs, label(at.Child("runtime"), t.Runtime)...)
	}
	errs = append(errs, pullSecrets(at.Child("imagePullSecrets"), t.ImagePullSecrets)...)
	errs = append(errs, within(at.Child("priority"), t.Priority, -MaxPriority, MaxPriority)...)
	return append(errs, placement(at, t)...)
}

// byKind validates the part of a template that depends on its kind.
func byKind(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	var errs field.ErrorList
	if t.Kind != rik.KindPod {
		why := "is allowed only for kind Pod"
		errs = append(errs, unsupported(at.Child("containers"), len(t.Containers) > 0, why)...)
		errs = append(errs, unsupported(at.Child("initContainers"), len(t.InitContainers) > 0, why)...)
		errs = append(errs, unsupported(at.Child("volumes"), len(t.Volumes) > 0, why)...)
		errs = append(errs, unsupported(at.Child("runtime"), t.Runtime != "", why)...)
	} else {
		errs = append(errs, volumes(at.Child("volumes"), t.Volumes)...)
		errs = append(errs, containers(at, t)...)
	}
	switch {
	case t.Kind != rik.KindFunction:
		errs = append(errs, unsupported(at.Child("function"), t.Function != nil, "is allowed only for kind Function")...)
	case t.Function == nil:
		errs = append(errs, field.Required(at.Child("function"), "is required for kind Function"))
	default:
		errs = append(errs, function(at.Child("function"), t.Function)...)
	}
	switch {
	case t.Kind != rik.KindApp:
		errs = append(errs, unsupported(at.Child("app"), t.App != nil, "is allowed only for kind App")...)
	case t.App == nil:
		errs = append(errs, field.Required(at.Child("app"), "is required for kind App"))
	default:
		errs = append(errs, app(at.Child("app"), t.App, t.HostNetwork)...)
		errs = append(errs, unsupported(at.Child("imagePullSecrets"), len(t.ImagePullSecrets) > 0, "is not allowed for kind App, which has no images")...)
	}
	return errs
}

// templateMetadata validates the labels and annotations that each instance gets.
func templateMetadata(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	errs := metav1validation.ValidateLabels(t.Labels, at.Child("labels"))
	for _, reserved := range []string{rikv1alpha1.LabelWorkload, rikv1alpha1.LabelRevision, rikv1alpha1.LabelTenant} {
		_, set := t.Labels[reserved]
		errs = append(errs, unsupported(at.Child("labels").Key(reserved), set, "is set by the server")...)
	}
	for _, key := range slices.Sorted(maps.Keys(t.Annotations)) {
		ours := strings.HasPrefix(key, rik.GroupName+"/") && key != rikv1alpha1.AnnotationRestartedAt
		// Instances get these annotations, and the controller uses them.
		errs = append(errs, unsupported(at.Child("annotations").Key(key), ours, "is reserved for the system")...)
	}
	return append(errs, apivalidation.ValidateAnnotations(t.Annotations, at.Child("annotations"))...)
}

func pullSecrets(at *field.Path, names []string) field.ErrorList {
	errs := atMost(at, len(names), MaxPullSecrets)
	unique := seen{}
	for i, name := range names {
		errs = append(errs, subdomain(at.Index(i), name)...)
		errs = append(errs, unique.add(at.Index(i), name)...)
	}
	return errs
}

// location requires a URL with one of the schemes, or an absolute path on the node.
func location(at *field.Path, value string, schemes ...string) field.ErrorList {
	if strings.HasPrefix(value, "/") {
		return absolutePath(at, value)
	}
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(value) > MaxPathBytes {
		return field.ErrorList{field.TooLong(at, "", MaxPathBytes)}
	}
	u, err := url.Parse(value)
	if err != nil {
		return field.ErrorList{field.Invalid(at, value, "must be a URL or an absolute path")}
	}
	if u.User != nil {
		return field.ErrorList{field.Forbidden(at, "must not contain a user name or password")}
	}
	for _, s := range schemes {
		if u.Scheme == s && u.Hostname() != "" {
			return nil
		}
	}
	return field.ErrorList{field.Invalid(at, value, "must be an absolute path or a URL with a host that begins with "+strings.Join(schemes, ":// or ")+"://")}
}

// placeholder is replaced with the version in the URL of a repository.
const placeholder = "{version}"

// repository validates the source of the files of an App.
func repository(at *field.Path, a *rik.App) field.ErrorList {
	var errs field.ErrorList
	if len(a.Version) > 128 || strings.ContainsFunc(a.Version, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' }) {
		errs = append(errs, field.Invalid(at.Child("version"), a.Version, "must be at most 128 printable ASCII characters without spaces and slashes"))
	}
	uses := strings.Contains(a.Repo, placeholder)
	switch {
	case uses && a.Version == "":
		errs = append(errs, field.Required(at.Child("version"), "the repository's address has "+placeholder+" in it"))
	case !uses && a.Version != "":
		errs = append(errs, field.Invalid(at.Child("version"), a.Version, "is not used: write "+placeholder+" in repo at the place of the version, or remove the version"))
	}
	if choices := strings.Split(a.Repo, "|"); len(choices) > 1 {
		for i := range choices {
			choices[i] = strconv.Quote(strings.TrimSpace(choices[i]))
		}
		return append(errs, field.Invalid(at.Child("repo"), a.Repo, "must not have alternatives: write "+strings.Join(choices, " or ")))
	}
	if rest := strings.ReplaceAll(a.Repo, placeholder, ""); strings.ContainsAny(rest, "{}") {
		return append(errs, field.Invalid(at.Child("repo"), a.Repo, "has braces outside of the placeholder "+placeholder+": write exactly that, in lower case and with single braces"))
	}
	// Validate the address with an example of a version, but show the original address in
	// errors.
	example := strings.ReplaceAll(a.Repo, placeholder, "0")
	for _, wrong := range location(at.Child("repo"), example, "https") {
		if wrong.BadValue == example {
			wrong.BadValue = a.Repo
		}
		errs = append(errs, wrong)
	}
	return errs
}

package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/api/strictdecode"
	"rik.dev/rik/internal/rikctl/clierror"
)

// MetadataPrefix is the prefix of the workload annotations that hold the metadata of a
// deployment file.
const MetadataPrefix = "metadata.rik.dev/"

// actionDeploy is the only action that a deployment file may have. The other actions of the
// published document are commands of rikctl.
const actionDeploy = "deploy"

// deployment is the published form of an App: name, repo, version, action and metadata. The
// other fields are rik's own, for settings that the published form lacks. They have the same
// meaning as in an App.
type deployment struct {
	Name     string            `json:"name"`
	Repo     string            `json:"repo"`
	Version  string            `json:"version"`
	Action   string            `json:"action"`
	Metadata map[string]string `json:"metadata"`

	Command   []string              `json:"command"`
	Args      []string              `json:"args"`
	Env       []rikv1alpha1.EnvVar  `json:"env"`
	User      string                `json:"user"`
	Ports     []rikv1alpha1.Port    `json:"ports"`
	Resources rikv1alpha1.Resources `json:"resources"`
}

// IsDeployment reports whether a file is a deployment file and not a manifest, which has a kind.
func IsDeployment(data []byte) bool {
	var fields map[string]any
	if yaml.Unmarshal(data, &fields) != nil {
		return false
	}
	has := func(name string) bool { _, ok := fields[name]; return ok }
	return !has("apiVersion") && !has("kind") && (has("repo") || has("action"))
}

// errAction reports a deployment file with an action that is not "deploy".
var errAction = errors.New("unknown action")

// FromDeployment builds the workload that a deployment file describes: one process that starts
// at once and restarts only when it fails. A process that exits with 0 is Completed.
func FromDeployment(d Document, namespace string) (*rikv1alpha1.Workload, error) {
	data, err := yaml.YAMLToJSONStrict(d.Data)
	if err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	var file deployment
	if err := strictdecode.Join(strictdecode.Check(data, &file)); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	problems, err := kjson.UnmarshalStrict(data, &file)
	if err = errors.Join(append(problems, err)...); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	if err := file.validate(); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	replicas := int32(1)
	w := &rikv1alpha1.Workload{
		TypeMeta:   metav1.TypeMeta{APIVersion: rikv1alpha1.SchemeGroupVersion.String(), Kind: "Workload"},
		ObjectMeta: metav1.ObjectMeta{Name: file.Name, Namespace: namespace},
		Spec: rikv1alpha1.WorkloadSpec{
			Deploy: rikv1alpha1.DeployAutomatic, Replicas: &replicas,
			InstanceTemplate: rikv1alpha1.InstanceTemplate{
				Kind: rikv1alpha1.KindApp, RestartPolicy: rikv1alpha1.RestartOnFailure,
				App: &rikv1alpha1.App{
					Repo: file.Repo, Version: file.Version, Command: file.Command, Args: file.Args,
					Env: file.Env, User: file.User, Ports: file.Ports, Resources: file.Resources,
				},
			},
		},
	}
	if len(file.Command) == 0 {
		// The published form names no program, so the program has the name of the app.
		w.Spec.App.Command = []string{"./" + file.Name}
	}
	for _, key := range slices.Sorted(maps.Keys(file.Metadata)) {
		metav1.SetMetaDataAnnotation(&w.ObjectMeta, MetadataPrefix+key, file.Metadata[key])
	}
	return w, nil
}

// validate reports mistakes with the names of the user's fields. The server could report them
// only with the names of a Workload's fields.
func (d *deployment) validate() error {
	var problems []error
	if d.Name == "" {
		problems = append(problems, errors.New("name: required"))
	} else if found := validation.IsDNS1123Label(d.Name); len(found) > 0 {
		problems = append(problems, fmt.Errorf("name: %q: %s", d.Name, strings.Join(found, "; ")))
	}
	if d.Repo == "" {
		problems = append(problems, errors.New("repo: required: an https archive or an absolute path of the node"))
	}
	if action := cmp.Or(d.Action, actionDeploy); action != actionDeploy {
		problems = append(problems, fmt.Errorf("action: %w %q; a file supports only %q; \"rikctl get apps\" lists apps, and \"rikctl delete app NAME\" deletes one", errAction, d.Action, actionDeploy))
	}
	for _, key := range slices.Sorted(maps.Keys(d.Metadata)) {
		if found := validation.IsQualifiedName(MetadataPrefix + key); len(found) > 0 {
			problems = append(problems, fmt.Errorf("metadata.%s: %s", key, strings.Join(found, "; ")))
		}
	}
	return errors.Join(problems...)
}

// Encode returns a workload without the fields that only the server writes, because applying
// a field means owning it.
func Encode(w *rikv1alpha1.Workload) ([]byte, error) {
	data, err := yaml.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("writing workload %s as a manifest: %w", w.Name, err)
	}
	var fields map[string]any
	if err := yaml.Unmarshal(data, &fields); err != nil {
		return nil, fmt.Errorf("reading workload %s as a manifest: %w", w.Name, err)
	}
	delete(fields, "status")
	return yaml.Marshal(prune(fields))
}

// prune removes empty objects and nulls, which Go's types cannot omit.
func prune(fields map[string]any) map[string]any {
	for key, value := range fields {
		if inner, ok := value.(map[string]any); ok && len(prune(inner)) == 0 || value == nil {
			delete(fields, key)
		}
	}
	return fields
}

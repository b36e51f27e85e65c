package lint

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v0 "rik.dev/rik/api/rik/v0"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/rikctl/manifest"
)

// NewCommand returns the command "rikctl lint".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	var files []string
	var offline bool
	cmd := &cobra.Command{
		Use:   "lint -f FILE",
		Short: "Check files without creating anything",
		Long: `Check the objects of files. Unknown fields are found without a server. If a server
is configured, it also validates the objects in a dry run.`,
		Example: cmdline.Example("rikctl lint -f manifests/"),
		Args:    cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return cmdline.Errorf(cmd, "-f FILE is required")
			}
			return t.runLint(cmd.Context(), files, offline)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "file", "f", nil, "file or directory to check; - for the standard input")
	cmd.Flags().BoolVar(&offline, "offline", false, "do not use a server")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml", "json")
	return cmd
}

func (t *tool) runLint(ctx context.Context, files []string, offline bool) error {
	documents, err := manifest.Read(files, t.Streams.In)
	if err != nil {
		return err
	}
	var validate *serverValidate
	if !offline {
		if validate, err = t.serverValidate(); err != nil {
			return err
		}
	}
	var problems []error
	if documents, err = unlisted(documents); err != nil {
		return err
	}
	for _, d := range documents {
		result, err := lint(ctx, d, validate)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		_, _ = fmt.Fprintf(t.Streams.Out, "%s: %s\n", d.Source, result)
	}
	return errors.Join(problems...)
}

// unlisted replaces each document of kind List by its items.
func unlisted(documents []manifest.Document) ([]manifest.Document, error) {
	var out []manifest.Document
	for _, d := range documents {
		var list struct {
			APIVersion string                      `json:"apiVersion"`
			Kind       string                      `json:"kind"`
			Items      []unstructured.Unstructured `json:"items"`
		}
		// A document that is not YAML is reported later, by the check of the document.
		if err := yaml.Unmarshal(d.Data, &list); err != nil || list.Kind != "List" || list.APIVersion != "v1" {
			out = append(out, d)
			continue
		}
		for i := range list.Items {
			data, err := list.Items[i].MarshalJSON()
			if err != nil {
				return nil, clierror.InvalidError{Source: d.Source, Err: err}
			}
			out = append(out, manifest.Document{Source: fmt.Sprintf("%s (item %d)", d.Source, i+1), Data: data})
		}
	}
	return out, nil
}

// lint checks one document and returns how far the check went.
func lint(ctx context.Context, d manifest.Document, validate *serverValidate) (string, error) {
	obj, err := lintOffline(d)
	onlyServer := errors.Is(err, manifest.ErrUnknownKind)
	if err != nil && !onlyServer {
		return "", err
	}
	label := fmt.Sprintf("%s %s", obj.GetKind(), obj.GetName())
	if validate == nil {
		if onlyServer {
			return label + ": not checked; only a server knows this type", nil
		}
		return label + ": its fields exist; not checked by a server", nil
	}
	err = validate.try(ctx, obj)
	switch {
	case err == nil:
		return label + ": ok", nil
	case unreachable(err) && !onlyServer:
		return label + ": its fields exist; not checked by a server, which was not reachable", nil
	}
	return "", clierror.InvalidError{Source: d.Source, Err: err}
}

// lintOffline decodes strictly and returns the object in the form that the server receives.
func lintOffline(d manifest.Document) (*unstructured.Unstructured, error) {
	obj := &unstructured.Unstructured{}
	if v0.Matches(d.Data) {
		w, err := manifest.FromPublished(d, "")
		if err != nil {
			return nil, err
		}
		data, err := yaml.Marshal(w)
		if err != nil {
			return nil, err
		}
		return obj, yaml.Unmarshal(data, &obj.Object)
	}
	_, strictErr := manifest.DecodeStrict(d)
	if strictErr != nil && !errors.Is(strictErr, manifest.ErrUnknownKind) {
		return nil, strictErr
	}
	if err := yaml.Unmarshal(d.Data, &obj.Object); err != nil {
		return nil, clierror.InvalidError{Source: d.Source, Err: err}
	}
	return obj, strictErr
}

// serverValidate validates objects with a dry run on the server.
type serverValidate struct {
	c         client.Client
	namespace string
}

// serverValidate returns nil without a configuration, because then there is no server.
func (t *tool) serverValidate() (*serverValidate, error) {
	namespace, err := t.Namespace()
	var missing *config.MissingError
	if errors.As(err, &missing) {
		t.Getter.Err = nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := t.Client()
	if err != nil {
		return nil, err
	}
	return &serverValidate{c, namespace}, nil
}

// try creates or updates the object in a dry run. It does not always use apply, because the
// server's merge stops at the first of some mistakes and returns them without a reason.
func (j *serverValidate) try(ctx context.Context, obj *unstructured.Unstructured) error {
	mapping, err := j.c.RESTMapper().RESTMapping(obj.GroupVersionKind().GroupKind(), obj.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && obj.GetNamespace() == "" {
		obj.SetNamespace(j.namespace)
	}
	unstructured.RemoveNestedField(obj.Object, "status")
	strict := client.FieldValidation(metav1.FieldValidationStrict)
	err = j.c.Create(ctx, obj.DeepCopy(), client.DryRunAll, strict, client.FieldOwner(cmdline.Program+"-lint"))
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	data, err := obj.MarshalJSON()
	if err != nil {
		return err
	}
	return j.c.Patch(ctx, obj, client.RawPatch(types.ApplyPatchType, data), client.DryRunAll, client.ForceOwnership,
		strict, client.FieldOwner(cmdline.Program+"-lint"))
}

// unreachable reports whether the server did not answer at all.
func unreachable(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsTimeout(err) || utilnet.IsConnectionReset(err)
}

package rikctl

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The names under which the server remembers rikctl's writes.
//
// fieldOwner is of what files and people say an object is: create, apply, deploy, edit,
// patch and rollout undo. Apply removes a field of this owner that the file no longer has.
// The others are of commands that change one thing beside the file, such as whether a
// rollout is paused. Apply leaves those as they are, unless the file has the field.
const (
	fieldOwner   = client.FieldOwner(name)
	rolloutOwner = client.FieldOwner(name + "-rollout")
	nodeOwner    = client.FieldOwner(name + "-node")
	drainOwner   = client.FieldOwner(name + "-drain")
)

// adopted are the owners whose earlier writes become fieldOwner's when a file is applied:
// rikctl's own, which are not yet an apply's, and those of kubectl's commands that rikctl
// has too.
var adopted = sets.New(name, "kubectl-create", "kubectl-edit", "kubectl-patch", "kubectl-replace", "kubectl-client-side-apply")

// ownedAsFile has one of kubectl's commands write as apply does.
func ownedAsFile(cmd *cobra.Command) *cobra.Command {
	// As if the user had: kubectl's apply has another name where nobody did.
	_ = cmd.Flags().Set("field-manager", name)
	cmd.Flags().Lookup("field-manager").DefValue = name
	return cmd
}

// adopt makes what was created, edited or patched the file's, so that apply can change and
// remove it. It leaves what cannot be read to kubectl's code, which says why.
//
// A preview changes nothing. It is made as if there were no conflicts where apply would
// first take over, and says so.
func (t *tool) adopt(cmd *cobra.Command, preview bool) error {
	if cmd.Flags().Lookup("field-manager").Value.String() != name {
		return nil
	}
	namespace, enforce, err := t.getter.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return err
	}
	var files resource.FilenameOptions
	files.Filenames, _ = cmd.Flags().GetStringSlice("filename")
	files.Kustomize, _ = cmd.Flags().GetString("kustomize")
	files.Recursive, _ = cmd.Flags().GetBool("recursive")
	selector, _ := cmd.Flags().GetString("selector")
	if files.RequireFilenameOrKustomize() != nil {
		return nil //nolint:nilerr // kubectl's code says what is missing
	}
	result := t.factory.NewBuilder().Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace().
		FilenameParam(enforce, &files).LabelSelectorParam(selector).Flatten().Do()
	infos, err := result.Infos()
	if err != nil {
		return nil //nolint:nilerr // kubectl's code reads the same
	}
	for _, info := range infos {
		if info.Name == "" {
			continue
		}
		pending, err := t.adoptOne(info, preview)
		if err != nil {
			return fmt.Errorf("taking over the fields of %s that were set before: %w", info.ObjectName(), err)
		}
		if pending {
			_, _ = fmt.Fprintf(t.streams.ErrOut, "note: %s was created or changed without apply, which will take over its fields; which of them it removes is not shown\n", info.ObjectName())
			if err := cmd.Flags().Set("force-conflicts", "true"); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptOne says of a preview whether apply would take over something.
func (t *tool) adoptOne(info *resource.Info, preview bool) (pending bool, err error) {
	helper := resource.NewHelper(info.Client, info.Mapping)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		there, err := helper.Get(info.Namespace, info.Name)
		if err != nil {
			return unlessAbsent(err)
		}
		patch, err := adoption(there)
		if err != nil || patch == nil {
			return err
		}
		if preview {
			pending = true
			return nil
		}
		_, err = helper.Patch(info.Namespace, info.Name, types.JSONPatchType, patch, nil)
		return unlessAbsent(err)
	})
	return pending, err
}

// adoption is the patch that moves the ownership, nil if there is nothing to move.
func adoption(there runtime.Object) ([]byte, error) {
	return csaupgrade.UpgradeManagedFieldsPatch(there, adopted, name)
}

// adoptTyped is adopt for an object that is already read.
func adoptTyped(ctx context.Context, c client.Client, key client.ObjectKey, there client.Object) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Get(ctx, key, there); err != nil {
			return unlessAbsent(err)
		}
		patch, err := adoption(there)
		if err != nil || patch == nil {
			return err
		}
		return unlessAbsent(c.Patch(ctx, there, client.RawPatch(types.JSONPatchType, patch), fieldOwner))
	})
}

// unlessAbsent passes over objects that are not there, and over those that the user may
// not read: then apply says what the user may not do.
func unlessAbsent(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

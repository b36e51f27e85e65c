// Package ownership decides which field manager each write of rikctl has, and moves the ownership
// of fields to apply.
package ownership

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

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// The field managers of rikctl's writes.
//
// fieldOwner is for commands in which a file or a user defines the object: create, apply,
// deploy, edit, patch and rollout undo. Apply removes a field of this owner that the file no
// longer has. The other owners are for commands that change one field apart from the file, such
// as whether a rollout is paused. Apply leaves their fields as they are, unless the file has the
// field.
const (
	File    = client.FieldOwner(cmdline.Program)
	Rollout = client.FieldOwner(cmdline.Program + "-rollout")
	Node    = client.FieldOwner(cmdline.Program + "-node")
	Drain   = client.FieldOwner(cmdline.Program + "-drain")
)

// adopted lists the owners whose earlier writes move to fieldOwner when a file is applied. These
// are rikctl's own updates that are not an apply, and those of the kubectl commands that rikctl
// has too.
var adopted = sets.New(cmdline.Program, "kubectl-create", "kubectl-edit", "kubectl-patch", "kubectl-replace", "kubectl-client-side-apply")

// AsFile makes one of kubectl's commands write with the field manager of apply.
func AsFile(cmd *cobra.Command) *cobra.Command {
	// Set the flag as if the user had, because kubectl's apply otherwise uses another name.
	_ = cmd.Flags().Set("field-manager", cmdline.Program)
	cmd.Flags().Lookup("field-manager").DefValue = cmdline.Program
	return cmd
}

// Adopt moves the ownership of fields that were created, edited or patched to fieldOwner, so
// that apply can change and remove them. If it cannot read an object, kubectl's code reports the
// error.
//
// A preview changes nothing. If apply would first take over fields, the preview ignores
// conflicts and prints a note.
func Adopt(f *access.Factory, cmd *cobra.Command, preview bool) error {
	if cmd.Flags().Lookup("field-manager").Value.String() != cmdline.Program {
		return nil
	}
	namespace, enforce, err := f.Getter.ToRawKubeConfigLoader().Namespace()
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
	result := f.Kube.NewBuilder().Unstructured().ContinueOnError().NamespaceParam(namespace).DefaultNamespace().
		FilenameParam(enforce, &files).LabelSelectorParam(selector).Flatten().Do()
	infos, err := result.Infos()
	if err != nil {
		return nil //nolint:nilerr // kubectl's code reads the same
	}
	for _, info := range infos {
		if info.Name == "" {
			continue
		}
		pending, err := adoptOne(info, preview)
		if err != nil {
			return fmt.Errorf("taking over the fields of %s: %w", info.ObjectName(), err)
		}
		if pending {
			_, _ = fmt.Fprintf(f.Streams.ErrOut, "note: %s was created or changed without apply. Apply will take over its fields; this preview does not show which of them it removes\n", info.ObjectName())
			if err := cmd.Flags().Set("force-conflicts", "true"); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptOne moves the ownership for one object. In a preview it reports whether apply would take
// over fields.
func adoptOne(info *resource.Info, preview bool) (pending bool, err error) {
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

// adoption returns the patch that moves the ownership, or nil if all fields have the right
// owner.
func adoption(there runtime.Object) ([]byte, error) {
	return csaupgrade.UpgradeManagedFieldsPatch(there, adopted, cmdline.Program)
}

// AdoptTyped does the same as adopt for a typed object.
func AdoptTyped(ctx context.Context, c client.Client, key client.ObjectKey, there client.Object) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Get(ctx, key, there); err != nil {
			return unlessAbsent(err)
		}
		patch, err := adoption(there)
		if err != nil || patch == nil {
			return err
		}
		return unlessAbsent(c.Patch(ctx, there, client.RawPatch(types.JSONPatchType, patch), File))
	})
}

// unlessAbsent ignores the error for an object that does not exist or that the user may not
// read. In the latter case apply itself reports the missing permission.
func unlessAbsent(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err) {
		return nil
	}
	return err
}

package split

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter/loader"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// nextForReader lists the permissions that explanations and plans need.
const nextForReader = "this needs permission to get and list clusters and placements (workload.kcp.dev), customresourcedefinitions (apiextensions.k8s.io), " +
	"negotiatedapiresources (apiresource.kcp.dev), persistentvolumeclaims and services, and the types that are split; an administrator can grant it"

// isKCP reports whether the server splits objects.
func (t *tool) isKCP() (bool, error) {
	mapper, err := t.Getter.ToRESTMapper()
	if err != nil {
		return false, err
	}
	_, err = mapper.RESTMapping(schema.GroupKind{Group: workloadv1alpha1.GroupName, Kind: "Cluster"}, workloadv1alpha1.SchemeGroupVersion.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}

// kcpClient returns a client for a kcp. It is an error if the server is not a kcp.
func (t *tool) kcpClient() (client.Client, error) {
	switch is, err := t.isKCP(); {
	case err != nil:
		return nil, err
	case !is:
		return nil, clierror.WithNext(clierror.ErrNoKCP, clierror.NextForKCP)
	}
	return t.Client()
}

// ofDivision adds the next step to an error of reading the objects from which splits are
// decided.
func ofDivision(err error) error {
	if apierrors.IsForbidden(err) {
		return clierror.WithNext(err, nextForReader)
	}
	return err
}

// readTypes reads the types that a kcp splits.
func readTypes(ctx context.Context, c client.Reader) ([]loader.Type, error) {
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	if err := c.List(ctx, crds); err != nil {
		return nil, fmt.Errorf("reading which types are split: %w", err)
	}
	negotiated := &apiresourcev1alpha1.NegotiatedAPIResourceList{}
	if err := c.List(ctx, negotiated); err != nil {
		return nil, fmt.Errorf("reading which types are split: %w", err)
	}
	return loader.Types(pointers(crds.Items), pointers(negotiated.Items)), nil
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// divided finds a type among those that are split.
func divided(types []loader.Type, kind schema.GroupKind) (loader.Type, bool) {
	i := slices.IndexFunc(types, func(t loader.Type) bool { return t.GVK.GroupKind() == kind })
	if i < 0 {
		return loader.Type{}, false
	}
	return types[i], true
}

// reference is an object that the command line names.
type reference struct {
	kind     schema.GroupVersionKind
	resource schema.GroupResource
	name     string
}

// String returns the object's name as kubectl prints it.
func (r reference) String() string { return r.resource.String() + "/" + r.name }

// references parses TYPE/NAME ... or TYPE NAME ...
func (t *tool) references(cmd *cobra.Command, given []string) ([]reference, error) {
	pairs, err := splitNames(given)
	if err != nil {
		return nil, cmdline.Wrap(cmd, err)
	}
	mapper, err := t.Getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	var out []reference
	for _, pair := range pairs {
		kind, resource, err := typeNamed(mapper, pair[0])
		if err != nil {
			return nil, err
		}
		out = append(out, reference{kind, resource, pair[1]})
	}
	return out, nil
}

// splitNames returns the pairs of type and name in the arguments.
func splitNames(given []string) ([][2]string, error) {
	var pairs [][2]string
	slashed := strings.Contains(given[0], "/")
	for i, word := range given {
		kind, name, has := strings.Cut(word, "/")
		switch {
		case has != slashed:
			return nil, fmt.Errorf("%q: write TYPE/NAME for each object, or one TYPE and then names", strings.Join(given, " "))
		case !slashed && i == 0:
			continue
		case !slashed:
			kind, name = given[0], word
		}
		if kind == "" || name == "" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is not TYPE/NAME", word)
		}
		pairs = append(pairs, [2]string{kind, name})
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("%q has no name; write %s/NAME", given[0], given[0])
	}
	return pairs, nil
}

// typeNamed returns the type that a word names: plural, singular, short or with its group.
func typeNamed(mapper meta.RESTMapper, word string) (schema.GroupVersionKind, schema.GroupResource, error) {
	full, partial := schema.ParseResourceArg(strings.ToLower(word))
	var gvr schema.GroupVersionResource
	err := error(&meta.NoResourceMatchError{PartialResource: partial.WithVersion("")})
	if full != nil {
		gvr, err = mapper.ResourceFor(*full)
	}
	if meta.IsNoMatchError(err) {
		gvr, err = mapper.ResourceFor(partial.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return schema.GroupVersionKind{}, schema.GroupResource{}, fmt.Errorf("the server doesn't have a resource type %q", word)
	}
	if err != nil {
		return schema.GroupVersionKind{}, schema.GroupResource{}, err
	}
	gvk, err := mapper.KindFor(gvr)
	return gvk, gvr.GroupResource(), err
}

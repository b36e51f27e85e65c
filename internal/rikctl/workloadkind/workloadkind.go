// Package workloadkind finds the workloads of one kind, for commands that accept app and function
// in place of a type.
package workloadkind

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/manifest"
)

// kindWords maps words on the command line to kinds of workloads.
var kindWords = map[string]rikv1alpha1.WorkloadKind{
	"app": rikv1alpha1.KindApp, "apps": rikv1alpha1.KindApp,
	"function": rikv1alpha1.KindFunction, "functions": rikv1alpha1.KindFunction, "fn": rikv1alpha1.KindFunction,
}

// Parse parses "apps", "app NAME..." and "app/NAME...". ok is false if the arguments name
// another type.
func Parse(given []string) (kind rikv1alpha1.WorkloadKind, names []string, ok bool) {
	if len(given) == 0 {
		return "", nil, false
	}
	if kind, ok = kindWords[given[0]]; ok {
		return kind, given[1:], true
	}
	for i, arg := range given {
		word, name, typed := strings.Cut(arg, "/")
		k, known := kindWords[word]
		if !typed || !known || i > 0 && k != kind {
			return "", nil, false
		}
		kind, names = k, append(names, name)
	}
	return kind, names, true
}

// Plural returns the plural of a kind in lower case.
func Plural(kind rikv1alpha1.WorkloadKind) string { return strings.ToLower(string(kind)) + "s" }

// Find returns the workloads of a kind: all of them, or those with the given names. A
// name is the object's name or the name that a deployment file has under metadata.
func Find(ctx context.Context, c client.Client, kind rikv1alpha1.WorkloadKind, names []string, options ...client.ListOption) ([]rikv1alpha1.Workload, error) {
	list := &rikv1alpha1.WorkloadList{}
	if err := c.List(ctx, list, options...); err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(list.Items, func(w rikv1alpha1.Workload) bool { return w.Spec.Kind != kind })
	if len(names) == 0 {
		return all, nil
	}
	var found []rikv1alpha1.Workload
	var problems []error
	for _, n := range names {
		at := slices.IndexFunc(all, func(w rikv1alpha1.Workload) bool { return w.Name == n })
		if at < 0 {
			at = slices.IndexFunc(all, func(w rikv1alpha1.Workload) bool {
				return n != "" && w.Annotations[manifest.MetadataPrefix+"name"] == n
			})
		}
		if at < 0 {
			problems = append(problems, clierror.WithNext(apierrors.NewNotFound(rikv1alpha1.Resource(Plural(kind)), n),
				fmt.Sprintf("\"rikctl get %s\" lists them; \"rikctl get workloads\" lists every kind", Plural(kind))))
			continue
		}
		found = append(found, all[at])
	}
	return found, errors.Join(problems...)
}

package rikctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// target is an instance, or all instances of a workload.
type target struct {
	workload bool
	name     string
}

var (
	instanceWords = []string{"instance", "instances", "inst", "ins"}
	workloadWords = []string{"workload", "workloads", "wl", "app", "apps", "function", "functions", "fn"}
)

// parseTarget parses NAME, instance/NAME or workload/NAME.
func parseTarget(arg string) (target, error) {
	kind, rest, typed := strings.Cut(arg, "/")
	if !typed {
		return target{name: arg}, nil
	}
	kind, _, _ = strings.Cut(kind, ".") // instances.rik.dev and similar
	switch {
	case rest == "":
		return target{}, fmt.Errorf("%q names nothing: write instance/NAME or workload/NAME", arg)
	case slices.Contains(instanceWords, kind):
		return target{name: rest}, nil
	case slices.Contains(workloadWords, kind):
		return target{workload: true, name: rest}, nil
	}
	return target{}, fmt.Errorf("%q is neither an instance nor a workload: write instance/NAME or workload/NAME", arg)
}

// workloadArg parses a workload's name as NAME, workload/NAME or the two words workload NAME.
func workloadArg(cmd *cobra.Command, given []string) (string, error) {
	joined := strings.Join(given, "/")
	if len(given) == 1 && !strings.Contains(joined, "/") {
		return joined, nil
	}
	tg, err := parseTarget(joined)
	if err != nil || !tg.workload || strings.Contains(tg.name, "/") {
		return "", usagef(cmd, "%q is not a workload: write workload/NAME", strings.Join(given, " "))
	}
	return tg.name, nil
}

// instances returns the instances of a target, sorted by name.
func (tg target) instances(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Instance, error) {
	if !tg.workload {
		i := rikv1alpha1.Instance{}
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: tg.name}, &i); err != nil {
			return nil, err
		}
		return []rikv1alpha1.Instance{i}, nil
	}
	w := &rikv1alpha1.Workload{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: tg.name}, w); err != nil {
		return nil, err
	}
	all, err := instancesOf(ctx, c, w)
	if err == nil && len(all) == 0 {
		err = advised{fmt.Errorf("workload %s has no instances", tg.name),
			fmt.Sprintf("\"rikctl create instance -w %s\" starts one", tg.name)}
	}
	return all, err
}

// instancesOf returns the instances of a workload, sorted by name.
func instancesOf(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) ([]rikv1alpha1.Instance, error) {
	list := &rikv1alpha1.InstanceList{}
	if err := c.List(ctx, list, client.InNamespace(w.Namespace), client.MatchingFields{"spec.workload": w.Name}); err != nil {
		return nil, err
	}
	return list.Items, nil
}

// restClient returns a client for the streaming subresources.
func (t *tool) restClient() (*rest.RESTClient, *rest.Config, error) {
	restConfig, err := t.getter.ToRESTConfig()
	if err != nil {
		return nil, nil, err
	}
	restConfig.APIPath = "/apis"
	restConfig.GroupVersion = &rikv1alpha1.SchemeGroupVersion
	restConfig.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	c, err := rest.RESTClientFor(restConfig)
	return c, restConfig, err
}

// parameters encodes the options of subresources as a query.
var parameters = runtime.NewParameterCodec(scheme)

// completeInstances completes the names of instances, and of workloads after "workload/".
func (t *tool) completeInstances(_ *cobra.Command, given []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(given) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if kind, rest, ok := strings.Cut(typed, "/"); ok {
		var names []string
		for _, n := range completion.CompGetResource(t.factory, kind, rest) {
			names = append(names, kind+"/"+n)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	return completion.CompGetResource(t.factory, "instances.rik.dev", typed), cobra.ShellCompDirectiveNoFileComp
}

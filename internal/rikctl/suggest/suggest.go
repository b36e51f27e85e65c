package suggest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
)

// unknownType finds the word in the error about an unknown type.
var unknownType = regexp.MustCompile(`doesn't have a resource type "([^"]+)"`)

// unknownKindText finds the kind in the error about a file with an unknown kind.
var unknownKindText = regexp.MustCompile(`no matches for kind "([^"]+)"`)

// inRik maps words of Kubernetes to their equivalent in rik.
var inRik = []struct {
	words []string
	next  string
}{
	{[]string{"pod", "pods", "po"}, `rik has instances in place of pods: "rikctl get instances" lists them, and a Workload (apiVersion rik.dev/v1alpha1) describes them`},
	{[]string{"service", "services", "svc", "endpoints", "ep", "endpointslice", "endpointslices", "ingress", "ingresses", "ing"},
		`a workload has its own address, name and ports: see spec.containers[].ports of "rikctl explain workload"`},
	{[]string{"statefulset", "statefulsets", "sts", "daemonset", "daemonsets", "ds", "replicaset", "replicasets", "rs", "job", "jobs", "cronjob", "cronjobs", "cj"},
		`a Workload (apiVersion rik.dev/v1alpha1) or a Deployment runs instances here: "rikctl explain workload" shows the fields`},
	{[]string{"persistentvolumeclaim", "persistentvolumeclaims", "pvc", "persistentvolume", "persistentvolumes", "pv", "storageclass", "storageclasses", "sc"},
		`volumes are part of a workload: see spec.volumes of "rikctl explain workload"`},
	{[]string{"networkpolicy", "networkpolicies", "netpol", "limitrange", "limitranges", "horizontalpodautoscaler", "horizontalpodautoscalers", "hpa", "poddisruptionbudget", "poddisruptionbudgets", "pdb"},
		`rik has no such type; "rikctl api-resources" lists the types that the server has`},
}

// placeOf returns the equivalent of a word of Kubernetes, or "".
func placeOf(word string) string {
	for _, entry := range inRik {
		if slices.Contains(entry.words, strings.ToLower(word)) {
			return entry.next
		}
	}
	return ""
}

// Next adds the next step to the outcome of a failed command line, if the error and the
// server show what the user meant.
func Next(ctx context.Context, f *access.Factory, o clierror.Outcome, args []string) clierror.Outcome {
	t := &tool{f}
	o = t.suggestType(ctx, o, args)
	o = t.suggestTarget(ctx, o, args)
	o = t.suggestName(ctx, o)
	return t.suggestConfig(o, args)
}

// suggestType adds a suggestion to the outcome of a command with a mistyped type, or with the
// name of an object in place of a type.
func (t *tool) suggestType(ctx context.Context, o clierror.Outcome, args []string) clierror.Outcome {
	if m := unknownKindText.FindStringSubmatch(o.Text); m != nil && placeOf(m[1]) != "" && !strings.Contains(o.Text, `in version "v0"`) {
		o.Next = placeOf(m[1])
		return o
	}
	m := unknownType.FindStringSubmatch(o.Text)
	if m == nil {
		return o
	}
	if next := placeOf(m[1]); next != "" {
		o.Next = next
		return o
	}
	if next := t.asName(ctx, m[1], args); next != "" {
		o.Next = next
		return o
	}
	d, err := t.Getter.ToDiscoveryClient()
	if err != nil {
		return o
	}
	_, lists, err := d.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return o
	}
	var words []string
	for _, list := range lists {
		for i := range list.APIResources {
			words = append(words, list.APIResources[i].Name, list.APIResources[i].SingularName)
		}
	}
	if near := similar(m[1], words); len(near) > 0 {
		o.Next = fmt.Sprintf("did you mean %s? %s", strings.Join(near, " or "), clierror.NextForType)
	}
	return o
}

// similar returns the words that are similar to a mistyped one, by cobra's measure for commands.
func similar(typed string, words []string) []string {
	parent := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, w := range words {
		if w != "" && !strings.Contains(w, "/") {
			parent.AddCommand(&cobra.Command{Use: w, Run: func(*cobra.Command, []string) {}})
		}
	}
	near := parent.SuggestionsFor(typed)
	slices.Sort(near)
	return slices.Compact(near)
}

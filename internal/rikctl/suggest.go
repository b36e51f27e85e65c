package rikctl

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// unknownType finds the word in the error about a type that does not exist.
var unknownType = regexp.MustCompile(`doesn't have a resource type "([^"]+)"`)

// suggestType adds what a mistyped type may have meant to an outcome.
func (t *tool) suggestType(o outcome) outcome {
	m := unknownType.FindStringSubmatch(o.text)
	if m == nil {
		return o
	}
	d, err := t.getter.ToDiscoveryClient()
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
		o.next = fmt.Sprintf("did you mean %s? %s", strings.Join(near, " or "), nextForType)
	}
	return o
}

// similar are the words that are close to a mistyped one, by the same measure
// that cobra has for commands.
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

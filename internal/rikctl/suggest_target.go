package rikctl

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// suggestTimeout bounds what is asked of the server for the sake of a hint.
const suggestTimeout = 3 * time.Second

// unknownInstance finds the name in the error about an instance that does not exist.
var unknownInstance = regexp.MustCompile(`instances\.rik\.dev "([^"]+)" not found`)

// onInstances are the commands that act on an instance and take workload/NAME too.
var onInstances = []string{"logs", "exec", "port-forward"}

// suggestTarget tells who named a workload where an instance is asked for how to name it.
func (t *tool) suggestTarget(ctx context.Context, o outcome, args []string) outcome {
	m := unknownInstance.FindStringSubmatch(o.text)
	if m == nil || !slices.Contains(onInstances, commandWord(args)) || !t.exists(ctx, &rikv1alpha1.Workload{}, m[1], true) {
		return o
	}
	o.next = fmt.Sprintf("%s is a workload: %s", m[1], asCommand(replacedWord(args, m[1], "workload/"+m[1])))
	return o
}

// named are the types of which an object is looked for by a name alone.
var named = []struct {
	word       string
	empty      func() client.Object
	namespaced bool
}{
	{"workload", func() client.Object { return &rikv1alpha1.Workload{} }, true},
	{"instance", func() client.Object { return &rikv1alpha1.Instance{} }, true},
	{"node", func() client.Object { return &rikv1alpha1.Node{} }, false},
	{"tenant", func() client.Object { return &rikv1alpha1.Tenant{} }, false},
}

// asName is the command for an object that was named without its type; empty if there is
// none of that name.
func (t *tool) asName(ctx context.Context, word string, args []string) string {
	if !slices.Contains(args, word) {
		return ""
	}
	for _, kind := range named {
		if t.exists(ctx, kind.empty(), word, kind.namespaced) {
			return fmt.Sprintf("%s is the name of a %s: %s", word, kind.word, asCommand(replacedWord(args, word, kind.word, word)))
		}
	}
	return ""
}

// exists asks the server for an object. Whatever goes wrong there is no hint.
func (t *tool) exists(ctx context.Context, empty client.Object, name string, namespaced bool) bool {
	ctx, cancel := context.WithTimeout(ctx, suggestTimeout)
	defer cancel()
	c, err := t.client()
	if err != nil {
		return false
	}
	key := client.ObjectKey{Name: name}
	if namespaced {
		if key.Namespace, err = t.namespace(); err != nil {
			return false
		}
	}
	return c.Get(ctx, key, empty) == nil
}

// commandWord is the first word that is no flag, nor the value of a global one.
func commandWord(args []string) string {
	for i := 0; i < len(args); i++ {
		switch {
		case slices.Contains([]string{"-n", "--namespace", "--config", "--kubeconfig", "--context", "--as", "--as-group", "--request-timeout"}, args[i]):
			i++
		case !strings.HasPrefix(args[i], "-"):
			return args[i]
		}
	}
	return ""
}

// replacedWord has the first occurrence of a word replaced by others.
func replacedWord(args []string, word string, by ...string) []string {
	i := slices.Index(args, word)
	if i < 0 {
		return args
	}
	return slices.Concat(args[:i], by, args[i+1:])
}

// asCommand is a command line as a shell takes it.
func asCommand(args []string) string {
	words := append([]string{name}, args...)
	for i, word := range words {
		words[i] = quoted(word)
	}
	return strings.Join(words, " ")
}

package suggest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// suggestTimeout limits the requests that are only for a suggestion.
const suggestTimeout = 3 * time.Second

// unknownInstance finds the name in the error about an instance that does not exist.
var unknownInstance = regexp.MustCompile(`instances\.rik\.dev "([^"]+)" not found`)

// onInstances lists the commands that accept an instance or workload/NAME.
var onInstances = []string{"logs", "exec", "port-forward", "why", "suspend", "resume"}

// unknownApp finds the name in the error of "delete NAME", which deletes apps and functions.
var unknownApp = regexp.MustCompile(`(?:apps|functions)\.rik\.dev "([^"]+)" not found`)

// unknownObject finds the type and the name in the error about an object that does not exist.
var unknownObject = regexp.MustCompile(`(workloads|instances|nodes|tenants)\.rik\.dev "([^"]+)" not found`)

// suggestTarget suggests workload/NAME if the user gave the name of a workload as the name of an
// instance.
func (t *tool) suggestTarget(ctx context.Context, o clierror.Outcome, args []string) clierror.Outcome {
	if m := unknownApp.FindStringSubmatch(o.Text); m != nil && commandWord(args) == "delete" && slices.Contains(args, m[1]) && !slices.Contains(args, "app") {
		if t.exists(ctx, &rikv1alpha1.Workload{}, m[1], true) {
			o.Next = fmt.Sprintf("%s is the name of a workload: %s", m[1], cmdline.CommandLine(replacedWord(args, m[1], "workload", m[1])))
			return o
		}
	}
	m := unknownInstance.FindStringSubmatch(o.Text)
	if m == nil || !slices.Contains(onInstances, commandWord(args)) || !t.exists(ctx, &rikv1alpha1.Workload{}, m[1], true) {
		return o
	}
	o.Next = fmt.Sprintf("%s is a workload: %s", m[1], cmdline.CommandLine(replacedWord(args, m[1], "workload/"+m[1])))
	return o
}

// lists has an empty list of each type in unknownObject.
var lists = map[string]func() client.ObjectList{
	"workloads": func() client.ObjectList { return &rikv1alpha1.WorkloadList{} },
	"instances": func() client.ObjectList { return &rikv1alpha1.InstanceList{} },
	"nodes":     func() client.ObjectList { return &rikv1alpha1.NodeList{} },
	"tenants":   func() client.ObjectList { return &rikv1alpha1.TenantList{} },
}

// maxNames limits the names among which a similar one is searched.
const maxNames = 500

// suggestName suggests the names that are similar to one that does not exist, and the command that
// lists all of them.
func (t *tool) suggestName(ctx context.Context, o clierror.Outcome) clierror.Outcome {
	m := unknownObject.FindStringSubmatch(o.Text)
	if m == nil || o.Next != "" {
		return o
	}
	o.Next = fmt.Sprintf("\"rikctl get %s\" lists them", m[1])
	if near := similar(m[2], t.names(ctx, m[1])); len(near) > 0 {
		o.Next = fmt.Sprintf("did you mean %s? %s", strings.Join(near, " or "), o.Next)
	}
	return o
}

// names returns the names of the objects of a type. On an error it returns none, because the result is
// only for a suggestion.
func (t *tool) names(ctx context.Context, resource string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, suggestTimeout)
	defer cancel()
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return nil
	}
	options := []client.ListOption{client.Limit(maxNames)}
	if resource == "workloads" || resource == "instances" {
		options = append(options, client.InNamespace(namespace))
	}
	list := lists[resource]()
	if err := c.List(ctx, list, options...); err != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if named, ok := o.(client.Object); ok {
			names = append(names, named.GetName())
		}
		return nil
	})
	return names
}

// named lists the types in which an object is searched by name alone.
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

// asName returns the command for an object that the user named without its type. It returns ""
// if no object has that name.
func (t *tool) asName(ctx context.Context, word string, args []string) string {
	if !slices.Contains(args, word) {
		return ""
	}
	for _, kind := range named {
		if t.exists(ctx, kind.empty(), word, kind.namespaced) {
			return fmt.Sprintf("%s is the name of a %s: %s", word, kind.word, cmdline.CommandLine(replacedWord(args, word, kind.word, word)))
		}
	}
	return ""
}

// exists reports whether an object exists on the server. On an error it returns false, because
// the result is only for a suggestion.
func (t *tool) exists(ctx context.Context, empty client.Object, name string, namespaced bool) bool {
	ctx, cancel := context.WithTimeout(ctx, suggestTimeout)
	defer cancel()
	c, err := t.Client()
	if err != nil {
		return false
	}
	key := client.ObjectKey{Name: name}
	if namespaced {
		if key.Namespace, err = t.Namespace(); err != nil {
			return false
		}
	}
	return c.Get(ctx, key, empty) == nil
}

// commandWord returns the first argument that is not a flag or the value of a global flag.
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

// replacedWord replaces the first occurrence of a word.
func replacedWord(args []string, word string, by ...string) []string {
	i := slices.Index(args, word)
	if i < 0 {
		return args
	}
	return slices.Concat(args[:i], by, args[i+1:])
}

// Package key has the keys under which the splitter's caches and queues find objects.
//
// A key of an index is a text. It contains the namespace, so that one index serves all
// namespaces.
package key

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/multicluster/splitter"
)

// Root identifies a root.
type Root struct {
	schema.GroupResource
	Namespace, Name string
}

func (k Root) String() string { return k.GroupResource.String() + " " + k.Namespace + "/" + k.Name }

// Follower identifies an object that others need.
type Follower struct{ Kind, Namespace, Name string }

func (k Follower) String() string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

// OfNeed returns the key of an object that an object of the namespace needs.
func OfNeed(namespace string, n splitter.Need) Follower {
	return Follower{n.Kind, namespace, n.Name}
}

// OfNeeds returns the keys of all objects that an object of the namespace needs.
func OfNeeds(namespace string, needs []splitter.Need) []Follower {
	keys := make([]Follower, 0, len(needs))
	for _, n := range needs {
		keys = append(keys, OfNeed(namespace, n))
	}
	return keys
}

// Needs returns the keys of needs in an index.
func Needs(namespace string, needs []splitter.Need) []string {
	keys := make([]string, 0, len(needs))
	for _, k := range OfNeeds(namespace, needs) {
		keys = append(keys, k.String())
	}
	return keys
}

// References returns the keys of references in an index, without duplicates. They contain only the
// names, because the type of a reference is not always known.
func References(namespace string, refs []splitter.Reference) []string {
	keys := make([]string, 0, len(refs))
	for _, ref := range refs {
		keys = append(keys, Name(namespace, ref.Name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Name returns the key of a name in an index. It is also the key of an object in a cache.
func Name(namespace, name string) string { return namespace + "/" + name }

// Label returns the key of a leaf by the label of its root. No name contains a question mark, so
// it differs from every Name.
func Label(namespace, value string) string { return namespace + "/?" + value }

// Pod returns the key of a label of pods.
func Pod(namespace, name, value string) string { return namespace + "/" + name + "=" + value }

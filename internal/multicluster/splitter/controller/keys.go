package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"rik.dev/rik/internal/multicluster/splitter"
)

// rootKey identifies a root.
type rootKey struct {
	schema.GroupResource
	Namespace, Name string
}

func (k rootKey) String() string { return k.GroupResource.String() + " " + k.Namespace + "/" + k.Name }

// rootKey returns the key of a root of the type.
func (k *kind) rootKey(namespace, name string) rootKey {
	return rootKey{GroupResource: k.GroupResource(), Namespace: namespace, Name: name}
}

// addRoots queues roots of a type.
func (c *Controller) addRoots(k *kind, roots ...*entry) {
	for _, root := range roots {
		c.roots.Add(k.rootKey(root.GetNamespace(), root.GetName()))
	}
}

// needKey identifies an object that others need.
type needKey struct{ Kind, Namespace, Name string }

func (n needKey) String() string { return n.Kind + "/" + n.Namespace + "/" + n.Name }

// keyOfNeed returns the key of an object that an object of the namespace needs.
func keyOfNeed(namespace string, n splitter.Need) needKey {
	return needKey{n.Kind, namespace, n.Name}
}

// keysOfNeeds returns the keys of all objects that an object of the namespace needs.
func keysOfNeeds(namespace string, needs []splitter.Need) []needKey {
	keys := make([]needKey, 0, len(needs))
	for _, n := range needs {
		keys = append(keys, keyOfNeed(namespace, n))
	}
	return keys
}

// needIndexKeys returns the keys of needs as indexes have them.
func needIndexKeys(namespace string, needs []splitter.Need) []string {
	keys := make([]string, 0, len(needs))
	for _, key := range keysOfNeeds(namespace, needs) {
		keys = append(keys, key.String())
	}
	return keys
}

// refIndexKeys returns the keys of references as indexes have them. An index needs only the name,
// because the type of a reference is not always known.
func refIndexKeys(namespace string, refs []splitter.Reference) []string {
	keys := make([]string, 0, len(refs))
	for _, ref := range refs {
		keys = append(keys, nameKey(namespace, ref.Name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func nameKey(namespace, name string) string { return namespace + "/" + name }

// labelKey is the key of a leaf by the label of its root. No name contains a question mark.
func labelKey(namespace, value string) string { return namespace + "/?" + value }

func podKey(namespace, name, value string) string { return namespace + "/" + name + "=" + value }

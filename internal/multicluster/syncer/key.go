package syncer

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key identifies an object upstream. The namespace is empty for cluster-scoped types.
type Key struct {
	Type            schema.GroupResource
	Namespace, Name string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %s", k.Type, k.Name)
	}
	return fmt.Sprintf("%s %s/%s", k.Type, k.Namespace, k.Name)
}

package node

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// Measured stores a node's measurements of itself and of its instances, as JSON in the format
// of the RIK papers. An empty text or map leaves the earlier measurements unchanged.
func (r *Reconciler) Measured(name, metrics string, instances map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if metrics != "" {
		r.measured[name] = metrics
	}
	for uid, text := range instances {
		r.usage[types.UID(uid)] = text
	}
}

// Measurements returns the latest measurements by node and by instance.
func (r *Reconciler) Measurements() (nodes map[string]string, instances map[types.UID]string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.Clone(r.measured), maps.Clone(r.usage)
}

package objects

import (
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Use records that an instance is about to run from a template. Objects that only this instance
// refers to are requested again, because the controller sends no changes of objects without an
// instance.
func (s *Store) Use(uid, namespace string, template *rikv1alpha1.InstanceTemplate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.uses[uid]; known {
		return
	}
	keys := References(namespace, template)
	s.uses[uid] = keys
	for _, key := range keys {
		if s.users[key]++; s.users[key] == 1 && s.waiting[key] == nil {
			delete(s.entries, key)
		}
	}
}

// Release records that nothing of an instance is left. Objects that no instance refers to any
// more are removed from memory, which matters most for Secrets.
func (s *Store) Release(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.uses[uid] {
		if s.users[key]--; s.users[key] > 0 {
			continue
		}
		delete(s.users, key)
		if s.waiting[key] == nil {
			delete(s.entries, key)
		}
	}
	delete(s.uses, uid)
}

// References lists the ConfigMaps and Secrets that a template names, each once.
func References(namespace string, t *rikv1alpha1.InstanceTemplate) []Key {
	var keys []Key
	add := func(kind nodev1.Kind, name string) {
		key := Key{kind, namespace, name}
		if name != "" && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	configMap := func(name string) { add(nodev1.Kind_KIND_CONFIG_MAP, name) }
	secret := func(name string) { add(nodev1.Kind_KIND_SECRET, name) }

	for _, v := range t.Volumes {
		if v.ConfigMap != nil {
			configMap(v.ConfigMap.Name)
		}
		if v.Secret != nil {
			secret(v.Secret.Name)
		}
	}
	for _, name := range t.ImagePullSecrets {
		secret(name)
	}
	for _, c := range consumers(t) {
		for _, env := range c.Env {
			if env.ValueFrom == nil {
				continue
			}
			if ref := env.ValueFrom.ConfigMapKeyRef; ref != nil {
				configMap(ref.Name)
			}
			if ref := env.ValueFrom.SecretKeyRef; ref != nil {
				secret(ref.Name)
			}
		}
		for _, from := range c.EnvFrom {
			configMap(from.ConfigMap)
			secret(from.Secret)
		}
	}
	return keys
}

// consumers returns all parts of a template that have an environment.
func consumers(t *rikv1alpha1.InstanceTemplate) []rikv1alpha1.Container {
	all := slices.Concat(t.InitContainers, t.Containers)
	if f := t.Function; f != nil {
		all = append(all, rikv1alpha1.Container{Env: f.Env, EnvFrom: f.EnvFrom})
	}
	if a := t.App; a != nil {
		all = append(all, rikv1alpha1.Container{Env: a.Env, EnvFrom: a.EnvFrom})
	}
	return all
}

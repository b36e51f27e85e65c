package objects

import (
	"slices"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Use says that an instance is about to run from a template. What only it
// refers to is read anew: while no instance referred to it, the controller did
// not say how it changed.
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

// Release says that nothing of an instance is left. What nobody refers to any
// more is forgotten, secrets above all.
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

// consumers are all parts of a template that have an environment.
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

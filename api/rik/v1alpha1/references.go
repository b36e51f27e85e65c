package v1alpha1

import "slices"

// References are the names of the objects in its own namespace that an instance of a template
// reads. They are sorted and have no duplicates.
//
// +k8s:deepcopy-gen=false
// +protobuf=false
type References struct {
	ConfigMaps, Secrets []string
}

// References returns the objects to which the template refers in environments, volumes and
// imagePullSecrets.
func (t *InstanceTemplate) References() References {
	r := References{Secrets: slices.Clone(t.ImagePullSecrets)}
	for _, c := range slices.Concat(t.InitContainers, t.Processes()) {
		r.fromEnv(c.Env)
		for _, from := range c.EnvFrom {
			r.add(from.ConfigMap, from.Secret)
		}
	}
	for _, v := range t.Volumes {
		if v.ConfigMap != nil {
			r.add(v.ConfigMap.Name, "")
		}
		if v.Secret != nil {
			r.add("", v.Secret.Name)
		}
	}
	slices.Sort(r.ConfigMaps)
	slices.Sort(r.Secrets)
	r.ConfigMaps, r.Secrets = slices.Compact(r.ConfigMaps), slices.Compact(r.Secrets)
	return r
}

func (r *References) fromEnv(env []EnvVar) {
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.add(ref.Name, "")
		}
		if ref := e.ValueFrom.SecretKeyRef; ref != nil {
			r.add("", ref.Name)
		}
	}
}

// add adds the names that are not empty.
func (r *References) add(configMap, secret string) {
	if configMap != "" {
		r.ConfigMaps = append(r.ConfigMaps, configMap)
	}
	if secret != "" {
		r.Secrets = append(r.Secrets, secret)
	}
}

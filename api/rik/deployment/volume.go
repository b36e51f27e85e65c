package deployment

import (
	"path"

	corev1 "k8s.io/api/core/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func volume(v *corev1.Volume) rikv1alpha1.Volume {
	out := rikv1alpha1.Volume{Name: v.Name}
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		out.ConfigMap = &rikv1alpha1.ObjectVolume{
			Name: s.Name, Items: items(s.Items), Mode: number(s.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode), Optional: isTrue(s.Optional),
		}
	case v.Secret != nil:
		s := v.Secret
		out.Secret = &rikv1alpha1.ObjectVolume{
			Name: s.SecretName, Items: items(s.Items), Mode: number(s.DefaultMode, corev1.SecretVolumeSourceDefaultMode), Optional: isTrue(s.Optional),
		}
	case v.HostPath != nil:
		create := v.HostPath.Type != nil && *v.HostPath.Type == corev1.HostPathDirectoryOrCreate
		out.HostPath = &rikv1alpha1.HostPathVolume{Path: path.Clean(v.HostPath.Path), Create: create}
	default: // a volume without a source is an empty directory
		out.EmptyDir = &rikv1alpha1.EmptyDirVolume{}
		if e := v.EmptyDir; e != nil {
			out.EmptyDir.InMemory = e.Medium == corev1.StorageMediumMemory
			if e.SizeLimit != nil {
				out.EmptyDir.SizeLimitBytes = e.SizeLimit.Value()
			}
		}
	}
	return out
}

func items(list []corev1.KeyToPath) []rikv1alpha1.KeyToPath {
	var out []rikv1alpha1.KeyToPath
	for _, item := range list {
		out = append(out, rikv1alpha1.KeyToPath{Key: item.Key, Path: path.Clean(item.Path)})
	}
	return out
}

func mount(m *corev1.VolumeMount) rikv1alpha1.VolumeMount {
	out := rikv1alpha1.VolumeMount{Name: m.Name, MountPath: path.Clean(m.MountPath), ReadOnly: m.ReadOnly}
	if m.SubPath != "" {
		out.SubPath = path.Clean(m.SubPath)
	}
	return out
}

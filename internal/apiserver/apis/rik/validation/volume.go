package validation

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

func volumes(at *field.Path, list []rik.Volume) field.ErrorList {
	errs := atMost(at, len(list), MaxVolumes)
	names := seen{}
	for i := range list {
		errs = append(errs, volume(at.Index(i), &list[i])...)
		errs = append(errs, names.add(at.Index(i).Child("name"), list[i].Name)...)
	}
	return errs
}

func volume(at *field.Path, v *rik.Volume) field.ErrorList {
	errs := label(at.Child("name"), v.Name)
	sources := 0
	if e := v.EmptyDir; e != nil {
		sources++
		here := at.Child("emptyDir", "sizeLimitBytes")
		errs = append(errs, within(here, e.SizeLimitBytes, 0, int64(1)<<50)...)
		errs = append(errs, unsupported(here, e.SizeLimitBytes != 0 && !e.InMemory, "has an effect only with inMemory")...)
	}
	if v.ConfigMap != nil {
		sources++
		errs = append(errs, objectVolume(at.Child("configMap"), v.ConfigMap)...)
	}
	if v.Secret != nil {
		sources++
		errs = append(errs, objectVolume(at.Child("secret"), v.Secret)...)
	}
	if v.HostPath != nil {
		sources++
		errs = append(errs, absolutePath(at.Child("hostPath", "path"), v.HostPath.Path)...)
	}
	if sources != 1 {
		errs = append(errs, field.Invalid(at, v.Name, "exactly one of emptyDir, configMap, secret and hostPath must be set"))
	}
	return errs
}

func objectVolume(at *field.Path, v *rik.ObjectVolume) field.ErrorList {
	errs := subdomain(at.Child("name"), v.Name)
	if v.Mode != nil && (*v.Mode < 0 || *v.Mode > 0o777) {
		errs = append(errs, field.Invalid(at.Child("mode"), *v.Mode, "must be between 0 and 0777 (octal; 511 in decimal)"))
	}
	errs = append(errs, atMost(at.Child("items"), len(v.Items), MaxVolumeItems)...)
	paths := seen{}
	for i, item := range v.Items {
		here := at.Child("items").Index(i)
		errs = append(errs, key(here.Child("key"), item.Key)...)
		errs = append(errs, relativePath(here.Child("path"), item.Path)...)
		errs = append(errs, paths.add(here.Child("path"), item.Path)...)
	}
	return errs
}

func volumeMounts(at *field.Path, mounts []rik.VolumeMount, inVolumes map[string]bool) field.ErrorList {
	errs := atMost(at, len(mounts), MaxVolumeMounts)
	paths := seen{}
	for i := range mounts {
		m, here := &mounts[i], at.Index(i)
		if !inVolumes[m.Name] {
			errs = append(errs, field.NotFound(here.Child("name"), m.Name))
		}
		errs = append(errs, mountPath(here.Child("mountPath"), m.MountPath)...)
		errs = append(errs, paths.add(here.Child("mountPath"), m.MountPath)...)
		if m.SubPath != "" {
			errs = append(errs, relativePath(here.Child("subPath"), m.SubPath)...)
		}
	}
	return errs
}

func mountPath(at *field.Path, value string) field.ErrorList {
	if errs := absolutePath(at, value); len(errs) > 0 {
		return errs
	}
	switch {
	case value == "/":
		return field.ErrorList{field.Invalid(at, value, "must not be the root directory: it comes from the image")}
	case value == "/dev", value == "/proc", strings.HasPrefix(value, "/proc/"):
		// runc rejects mounts there, because they would hide its masked paths.
		return field.ErrorList{field.Invalid(at, value, "must not be /dev, /proc or inside /proc: the runtime mounts those")}
	}
	return nil
}

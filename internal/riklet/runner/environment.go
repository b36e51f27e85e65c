package runner

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// environment resolves the variables of a container, in the order in which they apply. address is
// the instance's own address.
func (d *Driver) environment(ctx context.Context, in instance.Instance, address string, c rikv1alpha1.Container) ([]spec.EnvVar, error) {
	var list []spec.EnvVar
	for _, from := range c.EnvFrom {
		entries, err := d.entries(ctx, in.Namespace, from.ConfigMap, from.Secret, from.Optional)
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(entries.Data)) {
			list = append(list, spec.EnvVar{Name: from.Prefix + key, Value: string(entries.Data[key]), Fixed: true})
		}
	}
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			list = append(list, spec.EnvVar{Name: e.Name, Value: e.Value})
			continue
		}
		value, ok, err := d.valueFrom(ctx, in, address, *e.ValueFrom)
		if err != nil {
			return nil, fmt.Errorf("variable %s: %w", e.Name, err)
		}
		if ok {
			list = append(list, spec.EnvVar{Name: e.Name, Value: value, Fixed: true})
		}
	}
	// A key that is not a valid name is left out, as kubelet does. A "=" in it would set another
	// variable.
	list = slices.DeleteFunc(list, func(e spec.EnvVar) bool {
		return e.Name == "" || strings.ContainsAny(e.Name, "=\x00")
	})
	for _, e := range list {
		if strings.Contains(e.Value, "\x00") { // it would end the value
			return nil, &engine.ConfigError{Err: fmt.Errorf("variable %s: its value has a NUL byte, which no variable can hold: mount it as a file", e.Name)}
		}
		if size := len(e.Name) + len("=") + len(e.Value); size > maxVariable {
			return nil, &engine.ConfigError{Err: fmt.Errorf("variable %s: it has %d bytes, and Linux takes at most %d: mount it as a file", e.Name, size, maxVariable)}
		}
	}
	return list, nil
}

// maxVariable is MAX_ARG_STRLEN without the NUL. execve rejects a longer variable.
const maxVariable = 128<<10 - 1

// entries reads the named ConfigMap or Secret.
func (d *Driver) entries(ctx context.Context, namespace, configMap, secret string, optional bool) (instance.Entries, error) {
	kind, name, get := "ConfigMap", configMap, d.cfg.Objects.ConfigMap
	if secret != "" {
		kind, name, get = "Secret", secret, d.cfg.Objects.Secret
	}
	e, err := get(ctx, namespace, name)
	if err != nil {
		return e, fmt.Errorf("reading %s %q: %w", kind, name, err)
	}
	if !e.Found && !optional {
		return e, &engine.ConfigError{Err: fmt.Errorf("%s %q not found in namespace %q", kind, name, namespace)}
	}
	return e, nil
}

func (d *Driver) valueFrom(ctx context.Context, in instance.Instance, address string, from rikv1alpha1.EnvVarSource) (string, bool, error) {
	if from.FieldRef != "" {
		value, err := d.field(in, address, from.FieldRef)
		return value, true, err
	}
	ref, configMap, secret := from.ConfigMapKeyRef, "", ""
	if ref != nil {
		configMap = ref.Name
	} else if ref = from.SecretKeyRef; ref != nil {
		secret = ref.Name
	} else {
		return "", false, &engine.ConfigError{Err: fmt.Errorf("valueFrom names no source")}
	}
	entries, err := d.entries(ctx, in.Namespace, configMap, secret, ref.Optional)
	if err != nil {
		return "", false, err
	}
	value, ok := entries.Data[ref.Key]
	if !ok && !ref.Optional {
		return "", false, &engine.ConfigError{Err: fmt.Errorf("%q has no key %q", ref.Name, ref.Key)}
	}
	return string(value), ok, nil
}

func (d *Driver) field(in instance.Instance, address, path string) (string, error) {
	switch path {
	case "metadata.name":
		return in.Name, nil
	case "metadata.namespace":
		return in.Namespace, nil
	case "metadata.uid":
		return in.UID, nil
	case "spec.nodeName":
		return d.cfg.Node.Name, nil
	case "status.hostAddress":
		return d.cfg.Node.Address, nil
	case "status.address":
		if address == "" { // it has only its loopback device
			return "127.0.0.1", nil
		}
		return address, nil
	default:
		return "", &engine.ConfigError{Err: fmt.Errorf("unknown field %q", path)}
	}
}

// pullSecret merges the image pull credentials that the instance names. A missing Secret is
// skipped, as in Kubernetes; the pull then fails with its own error if it needs that Secret.
func (d *Driver) pullSecret(ctx context.Context, in instance.Instance) ([]byte, error) {
	type file struct {
		Auths map[string]json.RawMessage `json:"auths"`
	}
	merged := file{Auths: map[string]json.RawMessage{}}
	for _, name := range in.Template.ImagePullSecrets {
		entries, err := d.cfg.Objects.Secret(ctx, in.Namespace, name)
		if err != nil {
			return nil, fmt.Errorf("reading Secret %q: %w", name, err)
		}
		var one file
		if json.Unmarshal(entries.Data[".dockerconfigjson"], &one) != nil {
			continue
		}
		for registry, auth := range one.Auths {
			if _, ok := merged.Auths[registry]; !ok {
				merged.Auths[registry] = auth
			}
		}
	}
	if len(merged.Auths) == 0 {
		return nil, nil
	}
	return json.Marshal(merged)
}

// objectFiles returns the files of a ConfigMap or Secret by relative path, and their mode.
func (d *Driver) objectFiles(ctx context.Context, namespace string, v rikv1alpha1.Volume) (files map[string][]byte, mode fs.FileMode, err error) {
	source, configMap, secret, mode := v.ConfigMap, "", "", fs.FileMode(0o644)
	if source != nil {
		configMap = source.Name
	} else {
		source, mode = v.Secret, 0o400
		secret = source.Name
	}
	if source.Mode != nil {
		mode = fs.FileMode(*source.Mode).Perm()
	}
	entries, err := d.entries(ctx, namespace, configMap, secret, source.Optional)
	if err != nil {
		return nil, mode, err
	}
	files, err = selectFiles(entries.Data, *source)
	if err != nil {
		err = &engine.ConfigError{Err: err}
	}
	return files, mode, err
}

var validKey = regexp.MustCompile(`^[-._a-zA-Z0-9]{1,253}$`)

// selectFiles returns the files of an object volume by relative path.
func selectFiles(data map[string][]byte, v rikv1alpha1.ObjectVolume) (map[string][]byte, error) {
	files := map[string][]byte{}
	for key, value := range data {
		if len(v.Items) == 0 && validKey.MatchString(key) && !strings.HasPrefix(key, "..") && key != "." {
			files[key] = value
		}
	}
	for _, item := range v.Items {
		value, ok := data[item.Key]
		if !ok {
			if v.Optional {
				continue
			}
			return nil, fmt.Errorf("%q has no key %q", v.Name, item.Key)
		}
		if !filepath.IsLocal(item.Path) || filepath.Clean(item.Path) == "." || strings.HasPrefix(item.Path, "..") {
			return nil, fmt.Errorf("path %q of key %q does not stay inside the volume", item.Path, item.Key)
		}
		files[filepath.Clean(item.Path)] = value
	}
	return files, nil
}

package redact

import (
	"slices"
	"strings"
)

// ownDomains are the domains of annotations whose values programs write. Values of others may hold
// anything, such as the last applied configuration with all its secrets.
var ownDomains = []string{"rik.dev", "kcp.dev", "deployment.kubernetes.io", "workload.kcp.dev"}

// Object removes secrets from an object of the API, in place.
func (r *Redactor) Object(object map[string]any) {
	kind, _ := object["kind"].(string)
	switch kind {
	case "Secret":
		r.all(object, "data")
		r.all(object, "stringData")
	case "ConfigMap":
		r.configMap(object)
	}
	if metadata, ok := object["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
		r.annotations(metadata)
	}
	for name, value := range object {
		if name != "metadata" && name != "apiVersion" && name != "kind" {
			object[name] = r.value(name, value)
		}
	}
}

// all replaces all values of a map in a field. Names of keys stay: they help to see what is missing.
func (r *Redactor) all(object map[string]any, field string) {
	values, ok := object[field].(map[string]any)
	if !ok {
		return
	}
	for key, value := range values {
		values[key] = r.removed(value)
	}
}

func (r *Redactor) configMap(object map[string]any) {
	r.all(object, "binaryData")
	if values, ok := object["data"].(map[string]any); ok {
		for key, value := range values {
			if Secret(key) {
				values[key] = r.removed(value)
			}
		}
	}
}

func (r *Redactor) annotations(metadata map[string]any) {
	values, ok := metadata["annotations"].(map[string]any)
	if !ok {
		return
	}
	for key, value := range values {
		domain, _, _ := strings.Cut(key, "/")
		text, _ := value.(string)
		if !slices.Contains(ownDomains, domain) || Secret(key) {
			// It is not learned: the last applied configuration has all fields of the object, with
			// ordinary words. Each field is checked by itself.
			values[key] = Mark
			continue
		}
		values[key] = r.Text(text)
	}
}

// removed replaces a value and learns what is in it.
func (r *Redactor) removed(value any) any {
	switch v := value.(type) {
	case string:
		r.Learn(v)
		return Mark
	case []any:
		for i := range v {
			v[i] = r.removed(v[i])
		}
		return v
	case map[string]any:
		for key := range v {
			v[key] = r.removed(v[key])
		}
		return v
	case nil, bool, int64, float64:
		return v
	default:
		return Mark
	}
}

// value removes secrets from the value of a field.
func (r *Redactor) value(name string, value any) any {
	switch v := value.(type) {
	case string:
		if !Secret(name) {
			return r.Text(v)
		}
		if !word(v) {
			r.Learn(v)
		}
		return Mark
	case []any:
		return r.list(name, v)
	case map[string]any:
		for key := range v {
			v[key] = r.value(key, v[key])
		}
		return v
	default:
		return value
	}
}

func (r *Redactor) list(name string, list []any) []any {
	switch name {
	case "env":
		for _, e := range list {
			r.variable(e)
		}
		return list
	case "command", "args":
		return r.arguments(list)
	}
	for i := range list {
		list[i] = r.value(name, list[i])
	}
	return list
}

// variable removes the value of an environment variable. Its name stays, and so does a reference to a
// Secret.
func (r *Redactor) variable(entry any) {
	v, ok := entry.(map[string]any)
	if !ok {
		return
	}
	value, ok := v["value"].(string)
	if !ok {
		return
	}
	name, _ := v["name"].(string)
	r.learnDistinct(name, value)
	v["value"] = Mark
}

// arguments removes the arguments of a command, except for its program and the names of flags: an
// argument of any form may be a secret.
func (r *Redactor) arguments(list []any) []any {
	var flag string
	for i, e := range list {
		text, ok := e.(string)
		if !ok {
			continue
		}
		name, value, assigned := strings.Cut(text, "=")
		switch isFlag := strings.HasPrefix(text, "-"); {
		case i == 0 && strings.HasPrefix(text, "/"):
			list[i] = r.Text(text)
		case isFlag && assigned:
			r.learnDistinct(name, value)
			list[i] = name + "=" + Mark
		case isFlag && len(text) > 2 && !strings.HasPrefix(text, "--"):
			// The value may follow the letter at once, as in -pPASSWORD.
			r.learnDistinct("", text[2:])
			list[i] = text[:2] + Mark
		case isFlag && len(text) <= maxFlag && !random(text):
			flag = text
			continue
		default:
			r.learnDistinct(flag, text)
			list[i] = Mark
		}
		flag = ""
	}
	return list
}

// maxFlag is the length above which a word that begins with a dash is not taken for a flag.
const maxFlag = 40

// learnDistinct learns a value that was removed only because of its place. If its name does not say
// that it is a secret, it is learned only if it does not look like a word, a path or a number, which
// would be removed everywhere.
func (r *Redactor) learnDistinct(name, value string) {
	if Secret(name) && !word(value) || random(value) {
		r.Learn(value)
	}
}

// random reports whether a value looks generated: it is long, has letters and digits, and no spaces
// or path.
func random(value string) bool {
	const long = 12
	if len(value) < long || strings.ContainsAny(value, " /\t\n") {
		return false
	}
	letters := strings.ContainsFunc(value, func(c rune) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' })
	digits := strings.ContainsFunc(value, func(c rune) bool { return c >= '0' && c <= '9' })
	return letters && digits
}

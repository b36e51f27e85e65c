package rikctl

import (
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/config"
)

const (
	misshapen = "apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: web}\nspec:\n  priority: high\n  replicas: 99999999999\n" +
		"  containers: [{name: main, image: \"docker://registry.example/web:1\", args: [1], resources: {limits: {memory: abc}}}]\n"
	published = `{"apiVersion":"v0","kind":"Pod","name":"a","replicas":"many","spec":{"containers":[{"name":"a","image":"b","ports":{"port":"http"}}]}}`
)

// fieldsOf are the errors about the values in misshapen.
var fieldsOf = []string{
	`spec.priority: Invalid value: "high": must be a whole number`,
	"spec.replicas: Invalid value: 99999999999: must be a whole number from -2147483648 to 2147483647",
	`spec.containers[0].args[0]: Invalid value: 1: must be text: put it in quotes, "1"`,
	`spec.containers[0].resources.limits.memory: Invalid value: "abc": must be a quantity`,
}

func (r result) checkNoGo(t *testing.T) {
	t.Helper()
	for _, word := range []string{"Go struct", "Go value", "regular expression", "unmarshal"} {
		if strings.Contains(r.out+r.err, word) {
			t.Errorf("the output speaks of the program instead of the file: %s%s", r.out, r.err)
		}
	}
}

func TestValuesOfWrongShapeOffline(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.env[config.EnvServer] = closedPort(t)
	m.stdin = misshapen
	for _, line := range []string{"create workload -f -", "lint --offline -f -"} {
		r := m.run(t, strings.Fields(line)...)
		r.check(t, clierror.ExitInvalid, fieldsOf...)
		r.checkNoGo(t)
	}
	m.stdin = published
	r := m.run(t, "lint", "--offline", "-f", "-")
	r.check(t, clierror.ExitInvalid, `replicas: Invalid value: "many"`, `spec.containers[0].ports.port: Invalid value: "http"`)
	r.checkNoGo(t)
	for text, want := range map[string]string{
		strings.Replace(misshapen, "abc", `"1e-999999999"`, 1): "spec.containers.resources.limits.memory: invalid value: \"1e-999999999\": the exponent of a quantity",
		"[1,2]": "document: Invalid value: [1,2]: must be an object", "apiVersion: 1\nkind: a": "apiVersion: Invalid value: 1"} {
		m.stdin = text
		r := m.run(t, "lint", "--offline", "-f", "-")
		r.check(t, clierror.ExitInvalid, want)
		r.checkNoGo(t)
	}
}

// TestServerValuesOfWrongShape sends the values to the server with every command that writes.
func TestServerValuesOfWrongShape(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.do(t, "apply", "-f", s.file(t, misshapen))
	r.check(t, clierror.ExitInvalid, fieldsOf...)
	r.checkNoGo(t)
	s.workload(t, "web", "")
	for kind, patch := range map[string]string{
		"merge":     `{"spec":{"priority":"high"}}`,
		"strategic": `{"spec":{"priority":"high"}}`,
		"json":      `[{"op":"add","path":"/spec/priority","value":"high"}]`,
	} {
		r := s.do(t, "patch", "workload", "web", "--type="+kind, "-p", patch)
		r.check(t, clierror.ExitInvalid, fieldsOf[0])
		r.checkNoGo(t)
	}
	s.do(t, "patch", "workload", "web", "--type=merge", "-p", `{"spec":{"priority":5}}`).check(t, clierror.ExitOK, "patched")
}

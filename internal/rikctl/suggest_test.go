package rikctl

import (
	"strings"
	"testing"

	"rik.dev/rik/internal/rikctl/clierror"
)

// TestHintsForUsersOfKubernetes checks that typical commands of Kubernetes users lead to a
// useful suggestion.
func TestHintsForUsersOfKubernetes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	node := s.node(t)
	pod := s.file(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: b}]}\n")
	for line, want := range map[string]string{
		"get pods":                 `"rikctl get instances"`,
		"get po":                   `"rikctl get instances"`,
		"get svc":                  "ports",
		"describe pod a":           `"rikctl get instances"`,
		"get statefulsets":         "Workload",
		"get pvc":                  "spec.volumes",
		"get hpa":                  "no such type",
		"get worklods":             "did you mean workload or workloads?",
		"apply -f " + pod:          "a Workload (apiVersion rik.dev/v1alpha1)",
		"create -f " + pod:         `"rikctl apply -f FILE"`,
		"create --filename=" + pod: `"rikctl apply -f FILE"`,
		"describe web":             "web is the name of a workload: rikctl -n " + s.namespace + " describe workload web",
		"get " + node:              node + " is the name of a node: rikctl -n " + s.namespace + " get node " + node,
		"logs web":                 "web is a workload: rikctl -n " + s.namespace + " logs workload/web",
		"exec web -- ls -l":        "web is a workload: rikctl -n " + s.namespace + " exec workload/web -- ls -l",
		"why web":                  "web is a workload: rikctl -n " + s.namespace + " why workload/web",
		"suspend web":              "web is a workload: rikctl -n " + s.namespace + " suspend workload/web",
		"delete web":               "web is the name of a workload: rikctl -n " + s.namespace + " delete workload web",
		"get workload wbe":         `did you mean web? "rikctl get workloads" lists them`,
		"get workload web wbe":     `did you mean web? "rikctl get workloads" lists them`,
		"rollout status nothing":   `"rikctl get workloads" lists them`,
		"drain nowhere":            `"rikctl get nodes" lists them`,
		"run web --image x":        `unknown command "run"`,
		"create pod x --image x":   `unknown command "pod"`,
		"drain":                    "an argument is missing: write rikctl drain NODE",
		"why a b c":                "wrong number of arguments (3): write rikctl why INSTANCE",
		"port-forward web 8080:80": "web is a workload: rikctl -n " + s.namespace + " port-forward workload/web 8080:80",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			r := s.do(t, strings.Fields(line)...)
			if r.code == clierror.ExitOK || !strings.Contains(r.err, "next: ") || !strings.Contains(r.err, want) {
				t.Errorf("code %d, %q, want a hint with %q", r.code, r.err, want)
			}
			if strings.Contains(r.err, "CRDs") || strings.Contains(r.err, "did you mean nodes") {
				t.Errorf("it says %q", r.err)
			}
		})
	}
	// Objects that do not exist are not suggested.
	s.do(t, "logs", "absent").check(t, clierror.ExitNotFound, "absent")
	s.do(t, "describe", "absent").check(t, clierror.ExitNotFound, "api-resources")
}

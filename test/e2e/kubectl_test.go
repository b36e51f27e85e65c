package e2e

import (
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedKubectl uses the real kubectl, built from its module, with the kubeconfig that
// the server wrote.
func TestPrivilegedKubectl(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{NoAgent: true})
	manifest := rikcluster.Manifest("web", "web:1", "exec sleep 1", "  deploy: Automatic\n  replicas: 2")
	for _, step := range []struct {
		name, input string
		args        []string
		want        string // in the output of both streams
		code        int
	}{
		{"apply", manifest, []string{"apply", "-f", "-"}, "workload.rik.dev/web created", 0},
		{"apply again changes nothing", manifest, []string{"apply", "-f", "-"}, "unchanged", 0},
		{"server-side apply", manifest, []string{"apply", "--server-side", "--force-conflicts", "-f", "-"}, "serverside-applied", 0},
		{"unknown field", strings.Replace(manifest, "image:", "imaeg:", 1), []string{"apply", "-f", "-"}, "spec.containers[0].imaeg", 1},
		{"bad value", strings.Replace(manifest, "replicas: 2", "replicas: -2", 1), []string{"apply", "-f", "-"}, "spec.replicas", 1},
		{"get", "", []string{"get", "workloads"}, "0/2", 0},
		{"get by short name", "", []string{"get", "wl", "web"}, "Automatic", 0},
		{"get instances", "", []string{"get", "instances"}, "Pending", 0},
		{"watch", "", []string{"get", "workloads", "-w", "--request-timeout=1s"}, "web", 0},
		{"explain", "", []string{"explain", "workload.spec.containers"}, "image", 0},
		{"scale", "", []string{"scale", "workload/web", "--replicas=3"}, "scaled", 0},
		{"label", "", []string{"label", "workload/web", "tier=front"}, "labeled", 0},
		{"auth", "", []string{"auth", "can-i", "create", "workloads"}, "yes", 0},
		{"auth of nobody", "", []string{"auth", "can-i", "create", "workloads", "--as", "nobody"}, "no", 1},
		{"api-resources", "", []string{"api-resources", "--api-group=rik.dev"}, "workloadrevisions", 0},
		{"no pods here", "", []string{"get", "pods"}, "doesn't have a resource type", 1},
		{"version", "", []string{"version"}, "+rik-", 0},
		{"delete", "", []string{"delete", "workload", "web", "--timeout=60s"}, "deleted", 0},
		{"gone", "", []string{"get", "workload", "web"}, "not found", 1},
		{"instances went with it", "", []string{"get", "instances"}, "No resources found", 0},
		{"namespace with content", "", []string{"create", "namespace", "full"}, "created", 0},
		{"content", manifest, []string{"apply", "-n", "full", "-f", "-"}, "created", 0},
		{"namespace goes with its content", "", []string{"delete", "namespace", "full", "--timeout=90s"}, "deleted", 0},
	} {
		t.Run(step.name, func(t *testing.T) {
			c := c.In(t)
			out := c.Kubectl(step.input, step.args...)
			if out.Code != step.code || !strings.Contains(out.Stdout+out.Stderr, step.want) {
				t.Errorf("kubectl %v: code %d, want %d and %q in:\n%s%s", step.args, out.Code, step.code, step.want, out.Stdout, out.Stderr)
			}
		})
	}
}

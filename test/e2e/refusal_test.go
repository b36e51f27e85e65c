package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// TestPrivilegedRefusals sends malformed or hostile input to a cluster.
func TestPrivilegedRefusals(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	image := c.Busybox()

	t.Run("manifests", func(t *testing.T) {
		c := c.In(t)
		good := rikcluster.Manifest("x", image, "true", "")
		for name, tc := range map[string]struct{ from, to, want string }{
			"name":          {"name: x", "name: X_y", "metadata.name"},
			"image":         {"image: " + image, `image: "no spaces please"`, "spec.containers[0].image"},
			"no image":      {"image: " + image, `image: ""`, "spec.containers[0].image"},
			"kind":          {"spec:", "spec:\n  kind: Spaceship", "spec.kind"},
			"unknown field": {"spec:", "spec:\n  replica: 3", "replica"},
			"quantity":      {"    - name: main", "    - name: main\n      resources: {limits: {memory: -1}}", "spec.containers[0].resources.limits"},
			"mount":         {"    - name: main", "    - name: main\n      volumeMounts: [{name: none, mountPath: /x}]", "spec.containers[0].volumeMounts[0].name"},
			"grace":         {"terminationGracePeriodSeconds: 2", "terminationGracePeriodSeconds: -2", "spec.terminationGracePeriodSeconds"},
		} {
			out := c.RikctlInput(strings.Replace(good, tc.from, tc.to, 1), "create", "workload", "-f", "-")
			if out.Code == 0 || !strings.Contains(out.Stderr, tc.want) {
				t.Errorf("%s: code %d, want a refusal that names %q:\n%s%s", name, out.Code, tc.want, out.Stdout, out.Stderr)
			}
			if strings.Contains(out.Stdout, "success") { // fault 22
				t.Errorf("%s: success is printed on failure: %s", name, out.Stdout)
			}
		}
	})
	t.Run("command lines", func(t *testing.T) {
		c := c.In(t)
		for _, args := range [][]string{
			{"create", "instance", "-w", "nothing"}, {"get", "spaceships"}, {"delete", "workload", "nothing"},
			{"logs", "nothing"}, {"exec", "nothing", "--", "true"}, {"scale", "workload", "nothing", "--replicas", "2"},
			{"create", "workload", "-f", "/does/not/exist"}, {"why", "nothing"}, {"frobnicate"},
		} {
			out := c.TryRikctl(args...)
			if out.Code == 0 || strings.TrimSpace(out.Stderr) == "" {
				t.Errorf("rikctl %v: code %d and %q, want an error", args, out.Code, out.Stderr)
			}
		}
	})
	t.Run("images", func(t *testing.T) {
		c := c.In(t)
		outside := filepath.Join(t.TempDir(), "outside")
		evil := func(name string, files map[string]ociimage.File) string {
			layer, err := ociimage.Tar(files)
			if err != nil {
				t.Fatal(err)
			}
			return c.Image(name, ociimage.Spec{Layers: []ociimage.Layer{{Tar: layer}}, Entrypoint: []string{"/bin/true"}})
		}
		for name, ref := range map[string]string{
			"absent":    "oci:" + c.Dir + "/images/nowhere:v1",
			"traversal": evil("traversal", map[string]ociimage.File{"../../../../../../../.." + outside: {Content: []byte("x")}}),
			"link out":  evil("linkout", map[string]ociimage.File{"out": {Link: filepath.Dir(outside)}, "out/" + filepath.Base(outside): {Content: []byte("x")}}),
		} {
			workload := "evil-" + strings.ReplaceAll(name, " ", "-")
			apply(t, c, rikcluster.Manifest(workload, ref, "true", "  restartPolicy: Never"), workload, 1)
			in := eventuallyInstance(c, workload, "Failed", func(in *rikv1alpha1.Instance) bool { return in.Status.Phase == rikv1alpha1.InstanceFailed })
			if in.Status.Message == "" && in.Status.Containers[0].Message == "" {
				t.Errorf("%s: the instance does not say why: %+v", name, in.Status)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Errorf("%s: the image wrote to the host", name)
			}
			c.Rikctl("delete", "workload", workload)
		}
	})
	t.Run("an instance that fits nowhere says why", func(t *testing.T) {
		c := c.In(t)
		manifest := rikcluster.Manifest("huge", image, "true", "") + "      resources: {requests: {cpu: \"1000\"}}\n"
		apply(t, c, manifest, "huge", 1)
		in := eventuallyInstance(c, "huge", "Pending with a reason", func(in *rikv1alpha1.Instance) bool {
			return in.Status.Phase == rikv1alpha1.InstancePending && in.Status.Message != ""
		})
		if got := c.Rikctl("why", in.Name); !strings.Contains(got, "cpu") {
			t.Errorf("why does not name the resource:\n%s", got)
		}
		c.Rikctl("delete", "workload", "huge")
	})
	t.Run("the node is unharmed", func(t *testing.T) {
		c := c.In(t)
		apply(t, c, rikcluster.Manifest("after", image, "exec sleep 1000", ""), "after", 1)
		waitReady(c, "after")
		if pid := c.Process("server").PID(); c.Process("server").Alive() != nil {
			t.Error(fmt.Errorf("server %d: %w", pid, c.Process("server").Alive()))
		}
	})
}

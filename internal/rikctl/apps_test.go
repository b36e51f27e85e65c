package rikctl

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
)

// deploymentFile is the deployment file of the published design, corrected where the original is
// ambiguous: it named two places as one, and a version that neither of them used.
const deploymentFile = `name: nginx
repo: https://example.com/nginx-{version}
version: 1.19.1
action: deploy
metadata:
    name: app1
`

func TestApps(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.file(t, deploymentFile)
	s.do(t, "get", "apps").check(t, clierror.ExitOK, "No apps found.")
	s.do(t, "deploy", "-f", file).check(t, clierror.ExitOK, "nginx deployed\n")
	s.do(t, "deploy", "-f", file).check(t, clierror.ExitOK, "nginx updated\n")
	s.do(t, "apply", "-f", file).check(t, clierror.ExitOK, "workload.rik.dev/nginx")
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("nginx"), w); err != nil {
		t.Fatal(err)
	}
	if w.Spec.Kind != rikv1alpha1.KindApp || w.Spec.App.Repo != "https://example.com/nginx-{version}" || w.Annotations["metadata.rik.dev/name"] != "app1" {
		t.Errorf("the workload is %+v with annotations %v", w.Spec.App, w.Annotations)
	}
	s.do(t, "get", "apps").check(t, clierror.ExitOK, "NAME", "STATUS", "AGE", "nginx", "Pending")

	node := s.node(t)
	s.do(t, "create", "instance", "-w", "nginx", "--name", "nginx-one").check(t, clierror.ExitOK)
	s.runningOn(t, "nginx-one", node)
	s.do(t, "get", "app", "app1", "-o", "wide").check(t, clierror.ExitOK, "Running", node, "https://example.com/nginx-{version}@1.19.1")
	s.finish(t, "nginx-one")
	lines := strings.Split(strings.TrimSpace(s.do(t, "get", "apps").out), "\n")
	if len(lines) != 2 || strings.Join(strings.Fields(lines[0]), " ") != "NAME STATUS AGE" || !strings.HasPrefix(strings.Join(strings.Fields(lines[1]), " "), "nginx Completed ") {
		t.Errorf("get apps prints %q", lines)
	}
	s.do(t, "get", "app/nginx", "-o", "yaml").check(t, clierror.ExitOK, "kind: Workload", "repo: https://example.com/nginx-{version}")
	s.do(t, "get", "apps", "-o", "name").check(t, clierror.ExitOK, "workload.rik.dev/nginx\n")
	s.do(t, "get", "functions").check(t, clierror.ExitOK, "No functions found.")
	s.do(t, "get", "apps", "other").check(t, clierror.ExitNotFound, `apps.rik.dev "other" not found`, "next:")
	s.do(t, "get", "apps", "--watch-only").check(t, clierror.ExitUsage, "get workloads")

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.letGo(t, &rikv1alpha1.Workload{}, "nginx")
		s.removeIfThere(t, "nginx-one")
	}()
	r := s.do(t, "delete", "nginx")
	<-ended
	if r.check(t, clierror.ExitOK); r.out != "nginx deleted on "+node+"\n" {
		t.Errorf("delete prints %q", r.out)
	}
	s.do(t, "delete", "nginx").check(t, clierror.ExitNotFound, `"nginx" not found`, "next:")
	s.do(t, "delete", "app", "nginx").check(t, clierror.ExitNotFound, "not found")
}

// finish completes an instance with success.
func (s site) finish(t *testing.T, instance string) {
	t.Helper()
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key(instance), i); err != nil {
		t.Fatal(err)
	}
	i.Status.Phase, i.Status.Ready = rikv1alpha1.InstanceCompleted, false
	if err := s.c.Status().Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
}

// removeIfThere does the work of the controller and the node for an instance whose workload is
// gone.
func (s site) removeIfThere(t *testing.T, instance string) {
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key(instance), i); client.IgnoreNotFound(err) != nil || err != nil {
		return
	}
	if err := s.c.Delete(t.Context(), i); client.IgnoreNotFound(err) != nil {
		t.Errorf("deleting %s: %v", instance, err)
	}
	s.letGo(t, &rikv1alpha1.Instance{}, instance)
}

func TestDeploymentFilesThatAreWrong(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, command := range []string{"deploy", "apply"} {
		s.do(t, command, "-f", s.file(t, "{name: a, repo: /a, action: destroy}")).check(t, clierror.ExitUsage, `unknown action "destroy"`, "next:")
		s.do(t, command, "-f", s.file(t, "{repo: /a}")).check(t, clierror.ExitUsage, "name: required")
		r := s.do(t, command, "-f", s.file(t, deploymentFile+"---\n{name: b, repo: ftp://x/y}\n"))
		r.check(t, clierror.ExitInvalid, "spec.app.repo")
	}
	s.do(t, "deploy").check(t, clierror.ExitUsage, "-f FILE is required")
	s.do(t, "deploy", "-f", "/nowhere/at/all").check(t, clierror.ExitUsage, "/nowhere/at/all")
	s.do(t, "deploy", "-f", s.file(t, "# nothing\n")).check(t, clierror.ExitUsage, "no object")
	s.do(t, "delete", "app").check(t, clierror.ExitUsage, "a name is required")
	s.do(t, "delete", "app", "x", "--all").check(t, clierror.ExitUsage, "--all")
	s.do(t, "delete", "workloads").check(t, clierror.ExitUsage, "no name was specified")
}

func TestDescribeOfKind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "describe", "apps").check(t, clierror.ExitOK, "No apps found.")
	s.do(t, "deploy", "-f", s.file(t, deploymentFile)).check(t, clierror.ExitOK)
	s.workload(t, "web", "")
	for _, given := range [][]string{{"app", "nginx"}, {"app/nginx"}, {"apps"}} {
		r := s.do(t, append([]string{"describe"}, given...)...)
		r.check(t, clierror.ExitOK, "Name:", "nginx", "Kind:", "App")
		if strings.Contains(r.out, "web") {
			t.Errorf("describe %v tells of a Pod:\n%s", given, r.out)
		}
	}
	s.do(t, "describe", "app", "web").check(t, clierror.ExitNotFound, "web")
	s.do(t, "describe", "function", "nginx").check(t, clierror.ExitNotFound, "nginx")
	s.do(t, "describe", "apps", "-A").check(t, clierror.ExitUsage, "describe workloads")
}

func TestApplyMixed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.stdin = deploymentFile + "---\n" + workloadManifest("web", "")
	s.do(t, "apply", "-f", "-").check(t, clierror.ExitOK, "workload.rik.dev/nginx", "workload.rik.dev/web")
	s.stdin = "{name: more, repo: /srv/more}"
	s.do(t, "deploy", "-f", "-").check(t, clierror.ExitOK, "more deployed")
}

func TestSuspendShowsTheReason(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-one").check(t, clierror.ExitOK)
	s.do(t, "suspend", "web-one").check(t, clierror.ExitConflict, "it has no node yet")
	s.do(t, "suspend", "nobody").check(t, clierror.ExitNotFound, "nobody")
	s.do(t, "suspend").check(t, clierror.ExitUsage, "write rikctl suspend INSTANCE")
	s.do(t, "resume", "pod/web").check(t, clierror.ExitUsage, "neither an instance nor a workload")
	s.do(t, "resume", "web-one", "--timeout=-1s").check(t, clierror.ExitUsage, "--timeout")
	s.runningOn(t, "web-one", s.node(t))
	s.do(t, "suspend", "workload/web").check(t, clierror.ExitUnreachable, "connect")
	s.finish(t, "web-one")
	s.do(t, "suspend", "web-one").check(t, clierror.ExitConflict, "Completed")
}

// TestServerSuspended checks how a suspended instance is shown.
func TestServerSuspended(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-one").check(t, clierror.ExitOK)
	s.runningOn(t, "web-one", s.node(t))
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key("web-one"), i); err != nil {
		t.Fatal(err)
	}
	i.Status.Suspended, i.Status.Ready, i.Status.Reason = true, false, rikv1alpha1.ReasonSuspended
	if err := s.c.Status().Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	s.do(t, "get", "instances").check(t, clierror.ExitOK, "Suspended")
	s.do(t, "describe", "instance", "web-one").check(t, clierror.ExitOK, "Running (Suspended)")
}

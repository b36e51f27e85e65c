package rikctl

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/apiprocess"
	"rik.dev/rik/internal/testkit/served"
)

func TestMain(m *testing.M) {
	// Set the global state before a server runs that writes logs.
	processOnce()
	code := apiprocess.RunMain(m)
	if err := stopKCP(); err != nil {
		fmt.Fprintln(os.Stderr, "stopping the kcp of the tests:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// site is a namespace of the real API server and a user of rikctl who has the configuration that
// the server wrote. No controller and no node run, so tests write their status themselves.
type site struct {
	machine
	namespace string
	c         client.Client
}

func newSite(t *testing.T) site {
	t.Helper()
	server := apiprocess.Shared(t)
	s := site{machine: newMachine(t), namespace: server.Namespace(t)}
	s.env["RIKCONFIG"] = filepath.Join(server.DataDir, "config.yaml")
	// Only the controller may bind instances.
	controller := rest.CopyConfig(server.Config)
	controller.Impersonate = rest.ImpersonationConfig{UserName: rikv1alpha1.UserController, Groups: []string{rikv1alpha1.GroupAdministrators}}
	c, err := client.New(controller, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	s.c = c
	return s
}

// do runs a command line in the site's namespace.
func (s site) do(t *testing.T, line ...string) result {
	t.Helper()
	return s.run(t, append([]string{"-n", s.namespace}, line...)...)
}

func (s site) file(t *testing.T, text string) string {
	t.Helper()
	f, err := os.CreateTemp(s.home, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

func (s site) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: s.namespace, Name: name}
}

// workload creates a workload with rikctl and returns its ID.
func (s site) workload(t *testing.T, name, extra string) string {
	t.Helper()
	r := s.do(t, "create", "workload", "-q", "-f", s.file(t, workloadManifest(name, extra)))
	r.check(t, clierror.ExitOK)
	return strings.TrimSpace(r.out)
}

func workloadManifest(name, extra string) string {
	return fmt.Sprintf("apiVersion: rik.dev/v1alpha1\nkind: Workload\nmetadata: {name: %s}\nspec:\n  containers: [{name: main, image: \"docker://registry.example/web:1\"}]\n%s", name, extra)
}

// node creates a Node without a machine.
func (s site) node(t *testing.T) string {
	t.Helper()
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}
	if err := s.c.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return n.Name
}

// runningOn writes the status of an instance as if a node ran it.
func (s site) runningOn(t *testing.T, instance, node string) {
	t.Helper()
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key(instance), i); err != nil {
		t.Fatal(err)
	}
	i.Spec.NodeName = node
	if err := s.c.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	i.Status.Phase, i.Status.Ready = rikv1alpha1.InstanceRunning, true
	if err := s.c.Status().Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
}

// confirmEnd does the controller's work after a node has removed an instance.
func (s site) confirmEnd(t *testing.T, instance string) {
	t.Helper()
	s.letGo(t, &rikv1alpha1.Instance{}, instance)
}

// deleteWorkload deletes a workload while the test does the controller's work.
func (s site) deleteWorkload(t *testing.T, word, name string) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.letGo(t, &rikv1alpha1.Workload{}, name)
	}()
	s.do(t, "delete", word, name).check(t, clierror.ExitOK, "deleted")
	<-ended
}

// letGo waits for the deletion of an object and removes its finalizers.
func (s site) letGo(t *testing.T, o client.Object, name string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, served.Timeout, true, func(ctx context.Context) (bool, error) {
		if err := s.c.Get(ctx, s.key(name), o); err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		if o.GetDeletionTimestamp() == nil {
			return false, nil
		}
		o.SetFinalizers(nil)
		err := s.c.Update(ctx, o)
		if apierrors.IsConflict(err) {
			return false, nil
		}
		return err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Errorf("waiting for the deletion of %s: %v", name, err)
	}
}

// TestServerCreateSuccessIsReal checks that a successful create prints the text of the published
// client, and that a refused one ends with an error and its code.
func TestServerCreateSuccessIsReal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	published := s.file(t, `{"apiVersion":"v0","kind":"Pod","name":"alpine","replicas":2,"spec":{"containers":[
		{"name":"alpine","image":"alpine:3","env":[{"name":"A","value":"b"}],"ports":{"port":80,"target_port":8080,"type":"nodePort"}}]}}`)
	r := s.do(t, "create", "workloads", "--file", published)
	r.check(t, clierror.ExitOK)
	m := regexp.MustCompile(`^Workload alpine has been successfully created with ID : "([0-9a-f-]{36})"\n$`).FindStringSubmatch(r.out)
	if m == nil {
		t.Fatalf("output = %q", r.out)
	}
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("alpine"), w); err != nil {
		t.Fatal(err)
	}
	if string(w.UID) != m[1] || w.Spec.Containers[0].Env[0].Value != "b" || w.Spec.Containers[0].Ports[0].TargetPort != 8080 || *w.Spec.Replicas != 2 {
		t.Errorf("the workload is %+v, not what the file says", w)
	}
	s.do(t, "create", "workload", "-f", published).check(t, clierror.ExitConflict, "already exists")
	s.do(t, "create", "workload", "-f", s.file(t, workloadManifest("Bad_Name", ""))).check(t, clierror.ExitInvalid, "metadata.name")
	s.do(t, "create", "workload", "-f", s.file(t, workloadManifest("a", "  restartPolicy: Sometimes\n"))).check(t, clierror.ExitInvalid, "spec.restartPolicy", "Sometimes")

	s.do(t, "create", "instance", "-w", "alpine").check(t, clierror.ExitOK, "Instance alpine-", "has been successfully created for workload : alpine")
	byID := s.do(t, "create", "instance", "--workload-id", m[1], "--replicas", "2", "-q")
	byID.check(t, clierror.ExitOK)
	if names := strings.Fields(byID.out); len(names) != 2 {
		t.Errorf("two replicas made %q", byID.out)
	}
	s.do(t, "create", "instance", "-w", "alpine", "--name", "mine").check(t, clierror.ExitOK, "Instance mine has been")
	again := s.do(t, "create", "instance", "-w", "alpine", "--name", "mine")
	again.check(t, clierror.ExitConflict, "already exists")
	missing := s.do(t, "create", "instance", "-w", "nope")
	missing.check(t, clierror.ExitNotFound, "nope", "rikctl get workloads")
	for _, refused := range []result{again, missing} {
		if strings.Contains(refused.out, "success") {
			t.Errorf("a refusal prints success: %s", refused.out)
		}
	}
	list := s.do(t, "get", "instances", "-o", "name")
	if n := len(strings.Fields(list.out)); n != 4 {
		t.Errorf("%d instances exist, want 4:\n%s", n, list.out)
	}
}

func TestServerGet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id := s.workload(t, "web", "")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-1").check(t, clierror.ExitOK)
	for _, word := range []string{"workload", "workloads", "wl", "workloads.rik.dev"} {
		s.do(t, "get", word).check(t, clierror.ExitOK, "NAME", "KIND", "web", "Pod")
	}
	for _, word := range []string{"revisions", "revision", "wlrev", "workloadrevisions"} {
		s.do(t, "get", word).check(t, clierror.ExitOK, "web-")
	}
	s.do(t, "get", "inst/web-1", "-o", "jsonpath={.spec.workload} {.status.phase}").check(t, clierror.ExitOK, "web Pending")
	s.do(t, "get", "instances", "-o", "wide").check(t, clierror.ExitOK, "web-1", "NODE")
	s.do(t, "get", "instances", "--field-selector", "spec.workload=other").check(t, clierror.ExitOK, "No resources found")
	s.do(t, "get", "workload", "web", "-o", "yaml").check(t, clierror.ExitOK, "uid: "+id)
	s.do(t, "get", "workload", "gone").check(t, clierror.ExitNotFound, `"gone" not found`)
	s.do(t, "get", "workloadz").check(t, clierror.ExitNotFound, "did you mean workload or workloads?")
	s.do(t, "get", "all").check(t, clierror.ExitOK, "workload.rik.dev/web", "instance.rik.dev/web-1")
	s.do(t, "describe", "workload", "web").check(t, clierror.ExitOK, "ID:", id, "docker://registry.example/web:1", "web-1", "Events:")
	s.do(t, "describe", "wl/web", "instance/web-1").check(t, clierror.ExitOK, "Workload:", "Pending")
	s.do(t, "describe", "instance", "gone").check(t, clierror.ExitNotFound, `"gone" not found`)
	s.do(t, "describe", "namespace", s.namespace).check(t, clierror.ExitOK, "Active")
	s.do(t, "api-resources", "--api-group=rik.dev").check(t, clierror.ExitOK, "workloads", "wl", "instances", "nodes", "tenants")
	s.do(t, "explain", "workload.spec.deploy").check(t, clierror.ExitOK, "deploy")
	s.do(t, "auth", "can-i", "create", "instances").check(t, clierror.ExitOK, "yes")
	s.do(t, "auth", "whoami").check(t, clierror.ExitOK, "system:masters")
	s.do(t, "version").check(t, clierror.ExitOK, "Client:", "Server:")
	s.do(t, "get", "--raw", "/readyz").check(t, clierror.ExitOK, "ok")
	s.do(t, "events").check(t, clierror.ExitOK)
	s.do(t, "__complete", "get", "workload", "").check(t, clierror.ExitOK, "web")
	s.do(t, "__complete", "logs", "workload/").check(t, clierror.ExitOK, "workload/web")
	s.do(t, "__complete", "create", "instance", "-w", "").check(t, clierror.ExitOK, "web")
}

// TestServerOutputForms checks that a wrong -o is an error. kubectl sends its request before it
// checks -o.
func TestServerOutputForms(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	for _, form := range []string{"nonsense", "custom-columns=", "jsonpath={.x", "go-template={{"} {
		for _, line := range [][]string{{"get", "workloads"}, {"label", "workload", "web", "a=b", "--overwrite"}} {
			t.Run(line[0]+" "+form, func(t *testing.T) {
				t.Parallel()
				s.do(t, append(line, "-o", form)...).check(t, clierror.ExitUsage, `next: "rikctl `+line[0]+` --help"`)
			})
		}
	}
}

func TestServerChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	file := s.file(t, workloadManifest("web", "  deploy: Automatic\n"))
	s.do(t, "apply", "-f", file).check(t, clierror.ExitOK, "workload.rik.dev/web serverside-applied")
	s.do(t, "apply", "-f", s.file(t, workloadManifest("web", "  deploi: Automatic\n"))).check(t, clierror.ExitInvalid, "spec.deploi")
	s.do(t, "apply", "-f", s.file(t, `{"apiVersion":"v0","kind":"Pod","name":"a","spec":{"containers":[]}}`)).check(t, clierror.ExitInvalid, "create workload -f")
	s.do(t, "label", "workload", "web", "tier=front").check(t, clierror.ExitOK, "labeled")
	s.do(t, "annotate", "workload", "web", "owner=ada").check(t, clierror.ExitOK, "annotated")
	s.do(t, "patch", "wl", "web", "--type=merge", "-p", `{"spec":{"replicas":4}}`).check(t, clierror.ExitOK, "patched")
	r := s.do(t, "scale", "workload", "web", "--replicas=5")
	r.check(t, clierror.ExitOK, "scaled")
	if strings.Contains(r.err, "note:") {
		t.Errorf("an Automatic workload gets a remark: %s", r.err)
	}
	s.do(t, "get", "wl", "web", "-o", "jsonpath={.spec.replicas} {.metadata.labels.tier} {.metadata.annotations.owner}").check(t, clierror.ExitOK, "5 front ada")
	s.workload(t, "manual", "")
	s.do(t, "scale", "wl/manual", "--replicas=2").check(t, clierror.ExitOK, "scaled", "note: workload manual has deploy: Manual")
	s.do(t, "lint", "-f", file).check(t, clierror.ExitOK, "Workload web: ok")
	s.do(t, "lint", "-f", s.file(t, workloadManifest("web", "  restartPolicy: Sometimes\n"))).check(t, clierror.ExitInvalid, "spec.restartPolicy")
	s.do(t, "wait", "workload/web", "--for=jsonpath={.spec.replicas}=5", "--timeout=30s").check(t, clierror.ExitOK, "condition met")
	s.do(t, "wait", "workload/web", "--for=condition=Available", "--timeout=0s").check(t, clierror.ExitUnreachable)
	s.deleteWorkload(t, "workload", "manual")
	s.do(t, "delete", "workload", "manual").check(t, clierror.ExitNotFound, "not found")
}

func TestServerTenantsAndNamespaces(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "create", "tenant", s.namespace+"-t", "--wait=false", "--user", "ada", "--user", "bob").check(t, clierror.ExitOK, "created")
	s.do(t, "describe", "tenant", s.namespace+"-t").check(t, clierror.ExitOK, "ada", "bob")
	s.do(t, "create", "tenant", "No_Good").check(t, clierror.ExitInvalid, "metadata.name")
	s.do(t, "create", "namespace", s.namespace+"-n").check(t, clierror.ExitOK, "namespace/"+s.namespace+"-n created")
	s.do(t, "create", "ns", s.namespace+"-n").check(t, clierror.ExitConflict, "already exists")
	s.run(t, "create", "workload", "-f", s.file(t, workloadManifest("web", "")), "-n", "gone").check(t, clierror.ExitNotFound, "gone")
}

func TestServerRollout(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "  deploy: Automatic\n")
	// Creating an instance creates the revision of the current template.
	s.do(t, "create", "instance", "-w", "web").check(t, clierror.ExitOK)
	s.do(t, "rollout", "undo", "workload/web").check(t, clierror.ExitError, "no earlier revision")
	s.do(t, "patch", "workload", "web", "--type=json", "-p", `[{"op":"replace","path":"/spec/containers/0/image","value":"docker://registry.example/web:2"}]`).check(t, clierror.ExitOK)
	s.do(t, "create", "instance", "-w", "web").check(t, clierror.ExitOK)
	s.do(t, "rollout", "history", "workload", "web").check(t, clierror.ExitOK, "REVISION", "web:1", "web:2")
	s.do(t, "rollout", "history", "web", "--revision=1").check(t, clierror.ExitOK, "docker://registry.example/web:1")
	s.do(t, "rollout", "undo", "web", "--to-revision=9").check(t, clierror.ExitNotFound, "revision 9 does not exist")
	s.do(t, "rollout", "undo", "workload/web").check(t, clierror.ExitOK, "rolled back to revision 1")
	s.do(t, "get", "wl", "web", "-o", "jsonpath={.spec.containers[0].image}").check(t, clierror.ExitOK, "web:1")
	s.do(t, "rollout", "pause", "workload/web").check(t, clierror.ExitOK, "workload/web paused")
	s.do(t, "get", "wl", "web", "-o", "jsonpath={.spec.paused}").check(t, clierror.ExitOK, "true")
	s.do(t, "rollout", "resume", "workload/web").check(t, clierror.ExitOK, "workload/web resumed")
	s.do(t, "rollout", "restart", "workload/web").check(t, clierror.ExitOK, "workload/web restarted")
	w := &rikv1alpha1.Workload{}
	if err := s.c.Get(t.Context(), s.key("web"), w); err != nil {
		t.Fatal(err)
	}
	if w.Spec.Paused || w.Spec.Annotations[rikv1alpha1.AnnotationRestartedAt] == "" {
		t.Errorf("after resume and restart: paused %v, annotations %v", w.Spec.Paused, w.Spec.Annotations)
	}
	s.do(t, "rollout", "status", "workload/web", "--watch=false").check(t, clierror.ExitOK, "waiting for the controller")
	s.do(t, "rollout", "status", "workload/web", "--timeout=1s").check(t, clierror.ExitUnreachable, "timed out waiting for the rollout of workload web")
	w.Status = rikv1alpha1.WorkloadStatus{ObservedGeneration: w.Generation, Replicas: 1, ReadyReplicas: 1, UpdatedReplicas: 1}
	if err := s.c.Status().Update(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	s.do(t, "rollout", "status", "workload/web").check(t, clierror.ExitOK, "workload web is rolled out")
	s.do(t, "rollout", "status", "workload/gone").check(t, clierror.ExitNotFound, "gone")
	s.workload(t, "manual", "")
	s.do(t, "rollout", "status", "manual").check(t, clierror.ExitError, "deploy: Manual")
}

func TestServerNodes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.node(t)
	s.do(t, "cordon", node).check(t, clierror.ExitOK, "node/"+node+" cordoned")
	s.do(t, "cordon", "node/"+node).check(t, clierror.ExitOK, "already cordoned")
	s.do(t, "get", "nodes").check(t, clierror.ExitOK, node, "SchedulingDisabled")
	s.do(t, "uncordon", node).check(t, clierror.ExitOK, "uncordoned")
	s.do(t, "taint", "node", node, "gpu=yes:NoSchedule").check(t, clierror.ExitOK, "tainted")
	s.do(t, "describe", "node", node).check(t, clierror.ExitOK, "gpu=yes:NoSchedule")
	s.do(t, "taint", "node", node, "gpu-").check(t, clierror.ExitOK)
	s.do(t, "taint", "node", node, "gpu-").check(t, clierror.ExitNotFound, `"gpu" not found`)
	s.do(t, "cordon", "gone").check(t, clierror.ExitNotFound, "gone")
	s.do(t, "drain", "gone").check(t, clierror.ExitNotFound, "gone")
}

func TestServerDrain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node, other := s.node(t), s.node(t)
	s.do(t, "drain", node, "--dry-run").check(t, clierror.ExitOK, "node/"+node+" would be cordoned", "nothing would be deleted")
	s.do(t, "drain", node).check(t, clierror.ExitOK, "cordoned", "drained")
	s.workload(t, "web", "  deploy: Automatic\n  replicas: 2\n")
	for name, on := range map[string]string{"web-1": node, "web-2": other} {
		s.do(t, "create", "instance", "-w", "web", "--name", name).check(t, clierror.ExitOK)
		s.runningOn(t, name, on)
	}
	s.do(t, "drain", node, "--dry-run").check(t, clierror.ExitOK, "instance/web-1", "would be deleted first")
	s.do(t, "drain", other, "--dry-run").check(t, clierror.ExitOK, "node/"+other+" would be cordoned", "instance/web-2")
	if r := s.do(t, "get", "node", other, "-o", "jsonpath={.spec.unschedulable}"); r.out != "" {
		t.Errorf("after a dry run unschedulable is %s", r.out)
	}
	s.drainsNot(t, node, "instance/web-1", "deleted", "timed out waiting for node "+node+" to be drained")
	s.confirmEnd(t, "web-1")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-3").check(t, clierror.ExitOK)
	s.runningOn(t, "web-3", other)
	s.do(t, "drain", node).check(t, clierror.ExitOK, "drained")

	s.workload(t, "db", "")
	s.do(t, "create", "instance", "-w", "db", "--name", "db-1").check(t, clierror.ExitOK)
	s.runningOn(t, "db-1", node)
	dry := s.do(t, "drain", node, "--dry-run")
	dry.check(t, clierror.ExitError, "db-1: deploy: Manual", "--force", "dry run")
	if strings.Contains(dry.out+dry.err, "stays cordoned") {
		t.Errorf("a dry run claims to have cordoned the node: %s", dry.err)
	}
	s.do(t, "drain", node).check(t, clierror.ExitError, "db-1: deploy: Manual", "--force", "uncordon "+node)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.confirmEnd(t, "db-1")
	}()
	s.do(t, "drain", node, "--force", "--grace-period=1").check(t, clierror.ExitOK, "instance/db-1", "drained")
	<-done
}

// TestServerWithoutNodes uses commands that need nodes or the controller.
func TestServerWithoutNodes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.workload(t, "web", "")
	s.do(t, "logs", "workload/web").check(t, clierror.ExitError, "workload web has no instances", "create instance -w web")
	s.do(t, "create", "instance", "-w", "web", "--name", "web-1").check(t, clierror.ExitOK)
	s.do(t, "logs", "web-1").check(t, clierror.ExitConflict, "it has no node yet")
	s.do(t, "logs", "gone").check(t, clierror.ExitNotFound, "gone")
	s.do(t, "exec", "web-1", "--", "ls").check(t, clierror.ExitError, "web-1 is Pending, not Running", "describe instance web-1")
	s.runningOn(t, "web-1", s.node(t))
	s.do(t, "logs", "workload/web").check(t, clierror.ExitUnreachable, "web-1")
	s.do(t, "exec", "workload/web", "--", "ls").check(t, clierror.ExitUnreachable, "web-1")
	s.do(t, "why", "web-1").check(t, clierror.ExitNotFound, "no explanation of the placement")
	s.do(t, "why", "gone").check(t, clierror.ExitNotFound, `"gone" not found`)
	s.do(t, "top", "nodes").check(t, clierror.ExitNotFound, "no metrics of nodes", "controller")
	s.do(t, "top", "instances").check(t, clierror.ExitNotFound, "no metrics of instances")
	s.do(t, "wait", "instance/web-1", "--for=phase=Running", "--timeout=30s").check(t, clierror.ExitOK, "condition met")
	s.do(t, "wait", "instance/web-1", "--for=condition=Ready", "--timeout=30s").check(t, clierror.ExitOK, "condition met")
	s.do(t, "delete", "instance", "web-1", "--wait=false").check(t, clierror.ExitOK, "deleted")
	s.do(t, "get", "instance", "web-1", "-o", "jsonpath={.status.phase}").check(t, clierror.ExitOK, "Destroying")
}

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// deploymentManifest is a Deployment that serves its version on port 8080, and on node port
// 30090.
const deploymentManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
        - name: main
          image: IMAGE
          command: [/bin/sh, -c, "mkdir /tmp/www; echo version $VERSION > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"]
          env: [{name: VERSION, value: one}]
          ports: [{name: http, containerPort: 8080, hostPort: 30090}]
          readinessProbe: {httpGet: {port: http}, periodSeconds: 1}
`

// TestPrivilegedDeployment controls a Deployment with kubectl and checks the running processes
// from outside.
func TestPrivilegedDeployment(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	c := rikcluster.Start(t, rikcluster.Options{})
	d := &deployed{c: c, image: c.Busybox()}
	t.Run("create, reach, delete", func(t *testing.T) { d.in(t).createAndDelete(t) })
	t.Run("roll out", func(t *testing.T) { d.in(t).rollOut(t) })
	t.Run("hands off", func(t *testing.T) { d.in(t).correct(t) })
	t.Run("what there is not", func(t *testing.T) { d.in(t).missing(t) })
	t.Run("delete leaves nothing", func(t *testing.T) { d.in(t).end(t) })
}

type deployed struct {
	c     *rikcluster.Cluster
	image string
}

func (d *deployed) in(t *testing.T) *deployed { return &deployed{c: d.c.In(t), image: d.image} }

// kubectl runs kubectl, which must succeed and print the words in want.
func (d *deployed) kubectl(t *testing.T, input, want string, args ...string) string {
	t.Helper()
	out := d.c.Kubectl(input, args...)
	if out.Code != 0 || !strings.Contains(out.Stdout+out.Stderr, want) {
		t.Fatalf("kubectl %v: code %d, want 0 and %q in:\n%s%s", args, out.Code, want, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// processes returns the number of processes of the program in containers.
func (d *deployed) processes(program string) int {
	n := 0
	for _, list := range d.c.InstanceProcesses(program) {
		n += len(list)
	}
	return n
}

func (d *deployed) eventuallyRun(t *testing.T, program string, want int) {
	t.Helper()
	d.c.Eventually(func() error {
		if n := d.processes(program); n != want {
			return fmt.Errorf("%d processes of %s run, want %d", n, program, want)
		}
		return nil
	})
}

// createAndDelete tests the first commands of a new user.
func (d *deployed) createAndDelete(t *testing.T) {
	d.kubectl(t, "", "created", "create", "deployment", "sleepy", "--image="+d.image, "--replicas=2", "--", "/bin/sh", "-c", "trap exit TERM; sleep 100000 & wait")
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/sleepy", "--timeout=200s")
	d.eventuallyRun(t, "sleep", 2)
	d.kubectl(t, "", "condition met", "wait", "--for=condition=Ready", "instance", "--all", "--timeout=100s")
	d.kubectl(t, "", "2/2", "get", "deployments", "sleepy")
	d.kubectl(t, "", "condition met", "wait", "--for=condition=Available", "deployment/sleepy", "--timeout=100s")
	d.kubectl(t, "", "scaled", "scale", "deployment/sleepy", "--replicas=0")
	d.eventuallyRun(t, "sleep", 0)
	d.kubectl(t, "", "deleted", "delete", "deployment", "sleepy", "--cascade=foreground", "--timeout=200s")
	if left := d.c.Kubectl("", "get", "workloads,instances", "--ignore-not-found", "-o", "name"); strings.TrimSpace(left.Stdout) != "" {
		t.Errorf("deleting it in the foreground left %s", left.Stdout)
	}
}

// rollOut changes the running version, with requests from outside all the time.
func (d *deployed) rollOut(t *testing.T) {
	manifest := strings.Replace(deploymentManifest, "IMAGE", d.image, 1)
	d.kubectl(t, manifest, "created", "apply", "-f", "-")
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.awaitAnswer(t, "version one")
	d.kubectl(t, "", "scaled", "scale", "deployment/web", "--replicas=3")
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.eventuallyRun(t, "httpd", 3)

	stream := startRequests(t)
	d.kubectl(t, "", "env updated", "set", "env", "deployment/web", "VERSION=two")
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.awaitAnswer(t, "version two")
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Env = append(spec.Env, "OTHER=image")
	other := d.c.Image("other", spec)
	d.kubectl(t, "", "image updated", "set", "image", "deployment/web", "main="+other)
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.kubectl(t, "", other, "get", "workloads", "web", "-o", "wide")
	stream.end(t)
	d.eventuallyRun(t, "httpd", 3)

	// A second apply is a strategic merge patch.
	d.kubectl(t, strings.Replace(manifest, "replicas: 2", "replicas: 1", 1), "configured", "apply", "-f", "-")
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.awaitAnswer(t, "version one")
	d.eventuallyRun(t, "httpd", 1)
}

const outside = "http://127.0.0.1:30090/"

// fetchOutside sends a request to the node port.
func fetchOutside(ctx context.Context) (string, error) {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext,
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, outside, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return strings.TrimSpace(string(body)), err
}

func (d *deployed) awaitAnswer(t *testing.T, want string) {
	t.Helper()
	d.c.Eventually(func() error {
		got, err := fetchOutside(t.Context())
		if err == nil && got != want {
			err = fmt.Errorf("the answer is %q, want %q", got, want)
		}
		return err
	})
}

// requests is a steady stream of requests. None of them may fail.
type requests struct {
	stop context.CancelFunc
	done chan error
}

func startRequests(t *testing.T) *requests {
	ctx, stop := context.WithCancel(t.Context())
	r := &requests{stop, make(chan error, 1)}
	t.Cleanup(stop)
	go func() {
		var failed []error
		asked := 0
		for ticker := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
			asked++
			if _, err := fetchOutside(context.WithoutCancel(ctx)); err != nil {
				failed = append(failed, err)
			}
		}
		if len(failed) > 0 || asked == 0 {
			r.done <- fmt.Errorf("%d of %d requests failed: %w", len(failed), asked, errors.Join(failed...))
		}
		close(r.done)
	}()
	return r
}

func (r *requests) end(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
}

// correct checks that the Deployment determines its Workload, even if a user changes the
// Workload.
func (d *deployed) correct(t *testing.T) {
	d.kubectl(t, "", "scaled", "scale", "workload/web", "--replicas=4")
	d.kubectl(t, "", "patched", "patch", "workload", "web", "--type=merge", "-p", `{"spec":{"revisionHistoryLimit":99}}`)
	d.c.Eventually(func() error {
		var w rikv1alpha1.Workload
		if err := d.c.TryGet(&w, "namespaces/default/workloads/web"); err != nil {
			return err
		}
		if *w.Spec.Replicas != 1 || *w.Spec.RevisionHistoryLimit != 10 {
			return fmt.Errorf("the workload has %d replicas and a history of %d", *w.Spec.Replicas, *w.Spec.RevisionHistoryLimit)
		}
		return nil
	})
	d.kubectl(t, "", "successfully rolled out", "rollout", "status", "deployment/web", "--timeout=200s")
	d.eventuallyRun(t, "httpd", 1)

	// A Workload that a user created is not taken over.
	d.kubectl(t, rikcluster.Manifest("mine", d.image, "exec sleep 5", ""), "created", "apply", "-f", "-")
	d.kubectl(t, "", "created", "create", "deployment", "mine", "--image="+d.image)
	d.kubectl(t, "", "condition met", "wait", "--for=condition=ReplicaFailure", "deployment/mine", "--timeout=100s")
	d.kubectl(t, "", "Delete it, give the Deployment another name", "get", "deployment", "mine", "-o", "jsonpath={.status.conditions[*].message}")
	d.kubectl(t, "", "deleted", "delete", "workload/mine", "deployment/mine", "--timeout=100s")
}

// missing checks that unsupported commands fail completely.
func (d *deployed) missing(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"get", "pods"}, "doesn't have a resource type"},
		{[]string{"get", "replicasets"}, "doesn't have a resource type"},
		{[]string{"rollout", "undo", "deployment/web"}, "could not find the requested resource"},
		{[]string{"rollout", "history", "deployment/web"}, "could not find the requested resource"},
		{[]string{"patch", "deployment", "web", "--type=merge", "-p", `{"spec":{"minReadySeconds":5}}`}, "spec.minReadySeconds"},
	} {
		out := d.c.Kubectl("", tc.args...)
		if out.Code == 0 || !strings.Contains(out.Stderr, tc.want) {
			t.Errorf("kubectl %v: code %d, want a failure that says %q:\n%s%s", tc.args, out.Code, tc.want, out.Stdout, out.Stderr)
		}
	}
	d.kubectl(t, "", "rollingUpdate", "explain", "deployment.spec.strategy.rollingUpdate")
	if got := d.kubectl(t, "", "", "get", "deployment", "web", "-o", "jsonpath={.status.conditions[?(@.type=='Progressing')].reason}"); got != "NewReplicaSetAvailable" {
		t.Errorf("the reason of Progressing is %q", got)
	}
}

func (d *deployed) end(t *testing.T) {
	d.kubectl(t, "", "deleted", "delete", "deployment", "web", "--timeout=200s")
	d.eventuallyRun(t, "httpd", 0)
	d.c.Eventually(func() error {
		out := d.c.Kubectl("", "get", "deployments,workloads,workloadrevisions,instances", "-o", "name")
		if out.Code != 0 || strings.TrimSpace(out.Stdout) != "" {
			return fmt.Errorf("left: %s%s", out.Stdout, out.Stderr)
		}
		return nil
	})
}

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// exposures is how often an instance is made reachable.
const exposures = 20

// nodePortWorkload returns a Workload that answers HTTP at a node port and runs on one node.
func nodePortWorkload(name, image, node string, port int32) *rikv1alpha1.Workload {
	one, grace := int32(1), int64(2)
	w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.Spec.Kind = rikv1alpha1.KindPod
	w.Spec.Deploy, w.Spec.Replicas = rikv1alpha1.DeployAutomatic, &one
	w.Spec.TerminationGracePeriodSeconds = &grace
	w.Spec.NodeSelector = map[string]string{rikv1alpha1.LabelHostname: node}
	w.Spec.Containers = []rikv1alpha1.Container{{
		Name: "main", Image: image, Args: []string{"-listen", ":8080"},
		Ports: []rikv1alpha1.Port{{Port: port, TargetPort: 8080, Type: rikv1alpha1.PortNodePort}},
	}}
	return w
}

func get(ctx context.Context, asking *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := asking.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// reachable waits until a server answers at a host and port.
func reachable(b *testing.B, host string) time.Time {
	b.Helper()
	asking := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	return poll(b, often, host+" to answer", func() bool { return get(b.Context(), asking, "http://"+host) == nil })
}

// BenchmarkReachable measures the time from the event that an instance is ready to the first
// answer through the node port of another node.
func BenchmarkReachable(b *testing.B) {
	begin(b)
	c := rikcluster.Start(b, rikcluster.Options{Machines: 2})
	api, image := dial(b, c), c.Hello()
	watching := follow(b, api, fields.Everything())
	var took []time.Duration
	b.ResetTimer()
	for range b.N {
		for i := range exposures {
			name := fmt.Sprintf("reached-%d-%d", b.N, i)
			port := int32(30100 + i)
			w := nodePortWorkload(name, image, "node-1", port)
			if err := api.Create(b.Context(), w); err != nil {
				b.Fatal(err)
			}
			ready := watching.await(name+" to be ready", func(_ watch.EventType, in *rikv1alpha1.Instance) bool {
				return in.Spec.Workload == name && in.Status.Phase == rikv1alpha1.InstanceRunning && in.Status.Ready
			})
			took = append(took, max(0, reachable(b, net.JoinHostPort(c.Machine(2).Address, fmt.Sprint(port))).Sub(ready)))
			if err := api.Delete(b.Context(), w); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(milliseconds(percentile(took, 50)), "ready-to-reachable-p50-ms")
	b.ReportMetric(milliseconds(percentile(took, 99)), "ready-to-reachable-p99-ms")
	b.Logf("load at the end: %s", load())
}

// BenchmarkChurn measures how many instances a second one node starts and deletes with its
// network on. It compares them with a plain loop of ip netns add and runc run with the same
// files, with as many in parallel as there are processors.
func BenchmarkChurn(b *testing.B) {
	begin(b)
	count := setting(b, "RIK_BENCH_CHURN", 60)
	c := rikcluster.Start(b, rikcluster.Options{})
	s := newSubmitter(b, c)
	bare := newBundle(b, c, "churn", s.seccomp())
	b.ResetTimer()
	for range b.N {
		began := time.Now()
		for i := range count {
			if err := create(b.Context(), s.api, "submitted", fmt.Sprintf("churn-%d-%d", b.N, i)); err != nil {
				b.Fatal(err)
			}
		}
		running := map[string]bool{}
		s.watch.await("all to run", func(_ watch.EventType, in *rikv1alpha1.Instance) bool {
			if in.Status.Phase == rikv1alpha1.InstanceRunning {
				running[in.Name] = true
			}
			return len(running) == count
		})
		b.ReportMetric(float64(count)/time.Since(began).Seconds(), "rik-started/s")
		began = time.Now()
		for name := range running {
			if err := s.api.Delete(b.Context(), &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
				b.Fatal(err)
			}
		}
		s.watch.await("all to be gone", func(event watch.EventType, in *rikv1alpha1.Instance) bool {
			if event == watch.Deleted {
				delete(running, in.Name)
			}
			return len(running) == 0
		})
		b.ReportMetric(float64(count)/time.Since(began).Seconds(), "rik-removed/s")
		up, down := bare.churn(count)
		b.ReportMetric(float64(count)/up.Seconds(), "bare-started/s")
		b.ReportMetric(float64(count)/down.Seconds(), "bare-removed/s")
	}
	b.Logf("load at the end: %s", load())
}

// churn creates a network namespace with a container for each of count, and deletes them, two at
// a time.
func (u bundle) churn(count int) (up, down time.Duration) {
	u.b.Helper()
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", u.name, i)
		u.copyFor(names[i])
	}
	each := func(do func(name string)) time.Duration {
		began := time.Now()
		var done sync.WaitGroup
		for worker := range 2 {
			done.Go(func() {
				for i := worker; i < count; i += 2 {
					do(names[i])
				}
			})
		}
		done.Wait()
		return time.Since(began)
	}
	up = each(func(name string) {
		mustRun(u.b, "ip", "netns", "add", name)
		if err := exec.Command(u.runc, "--root", u.root, "run", "--detach", "--bundle", filepath.Join(u.dir, name), name).Run(); err != nil {
			u.b.Errorf("runc run: %v", err)
		}
	})
	down = each(func(name string) {
		mustRun(u.b, u.runc, "--root", u.root, "delete", "--force", name)
		mustRun(u.b, "ip", "netns", "delete", name)
	})
	return up, down
}

// copyFor creates a bundle for a container with that name, in the network namespace and a cgroup
// with that name, with the same files.
func (u bundle) copyFor(name string) {
	u.b.Helper()
	raw, err := os.ReadFile(filepath.Join(u.dir, "config.json"))
	if err != nil {
		u.b.Fatal(err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		u.b.Fatal(err)
	}
	config["root"].(map[string]any)["path"] = filepath.Join(u.dir, "rootfs")
	linux := config["linux"].(map[string]any)
	linux["cgroupsPath"] = linux["cgroupsPath"].(string) + "-" + name
	for _, ns := range linux["namespaces"].([]any) {
		if ns := ns.(map[string]any); ns["type"] == "network" {
			ns["path"] = filepath.Join("/run/netns", name)
		}
	}
	if raw, err = json.Marshal(config); err != nil {
		u.b.Fatal(err)
	}
	dir := filepath.Join(u.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		u.b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
		u.b.Fatal(err)
	}
}

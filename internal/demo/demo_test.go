package demo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// node returns a node with a Ready condition.
func node(name string, ready metav1.ConditionStatus) *rikv1alpha1.Node {
	n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Info.MachineID = "id-of-" + name
	n.Status.Conditions = []metav1.Condition{{Type: rikv1alpha1.NodeReady, Status: ready, Reason: "Because", Message: "of a test"}}
	return n
}

func instance(name string, phase rikv1alpha1.InstancePhase) *rikv1alpha1.Instance {
	i := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Labels: map[string]string{rikv1alpha1.LabelWorkload: "hello"}}}
	i.Status.Phase, i.Status.Reason, i.Status.Message = phase, "ImagePullFailed", "no such file"
	return i
}

func foreign() *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "hello"}}
}

// newClient returns a client of a cluster in memory.
func newClient(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(funcs).Build()
}

// newDemo returns a demo whose application answers, on a cluster in memory.
func newDemo(t *testing.T, objects ...client.Object) *Demo {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "hello")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Demo{
		Client: newClient(t, interceptor.Funcs{}, objects...), Name: "hello", Port: 30080, Replicas: 2, Program: program, ImageDir: filepath.Join(dir, "images"),
		Machine: Machine{NodeName: "here"}, Timeout: time.Minute,
		CheckPort: func(context.Context, int32) error { return nil },
		Get:       func(context.Context, string) (string, error) { return "hello from hello-1\n", nil },
	}
}

func (d *Demo) workloadOf(t *testing.T) *rikv1alpha1.Workload {
	t.Helper()
	var w rikv1alpha1.Workload
	if err := d.Client.Get(t.Context(), types.NamespacedName{Namespace: Namespace, Name: d.Name}, &w); err != nil {
		t.Fatal(err)
	}
	return &w
}

func TestUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDemo(t, node("elsewhere", metav1.ConditionTrue), node("here", metav1.ConditionTrue), instance("hello-1", rikv1alpha1.InstanceRunning))
		checks, asked := 0, 0
		d.CheckPort = func(context.Context, int32) error { checks++; return nil }
		d.Get = func(_ context.Context, url string) (string, error) {
			if asked++; asked < 3 {
				return "", errors.New("connection refused")
			}
			return "hello from hello-1\n", nil
		}
		got, err := d.Up(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		layout := filepath.Join(d.ImageDir, "rik-demo")
		if got.URL != "http://127.0.0.1:30080/" || got.Node != "here" || got.Answer != "hello from hello-1" || !slices.Equal(got.Instances, []string{"hello-1"}) || got.Image != "oci:"+layout+":v1" {
			t.Errorf("Up() = %+v", got)
		}
		w := d.workloadOf(t)
		if w.Spec.Deploy != rikv1alpha1.DeployAutomatic || *w.Spec.Replicas != 2 || w.Spec.NodeSelector[rikv1alpha1.LabelHostname] != "here" || w.Spec.Containers[0].Image != got.Image || portOf(w) != 30080 {
			t.Errorf("the workload is %+v", w.Spec)
		}
		before, err := os.Stat(layout)
		if err != nil || before.Mode().Perm() != 0o755 {
			t.Fatalf("the image: %v, %v, want a directory that every user can read", before, err)
		}

		// A second demo keeps what it does not need to change.
		five := int32(5)
		w.Spec.Replicas = &five
		if err := d.Client.Update(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(layout); err != nil || !os.SameFile(before, after) {
			t.Errorf("the image was written again: %v", err)
		}
		if w := d.workloadOf(t); *w.Spec.Replicas != 5 || checks != 1 {
			t.Errorf("after a second demo there are %d replicas, and the port was checked %d times; want 5 and 1", *w.Spec.Replicas, checks)
		}

		// Another port and another program replace the earlier ones.
		d.Port = 30090
		if err := os.WriteFile(d.Program, []byte("newer"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after, err := os.Stat(layout); err != nil || os.SameFile(before, after) {
			t.Errorf("the image of the newer program was not written: %v", err)
		}
		if w := d.workloadOf(t); portOf(w) != 30090 || checks != 2 {
			t.Errorf("the port is %d, and ports were checked %d times; want 30090 and 2", portOf(w), checks)
		}
		entries, err := os.ReadDir(d.ImageDir)
		if err != nil || len(entries) != 1 {
			t.Errorf("the directory of images has %v, %v; want only the image", entries, err)
		}
	})
}

func TestUpRefusals(t *testing.T) {
	t.Parallel()
	refusal := errors.New("process 7 (nginx) has it")
	for name, tc := range map[string]struct {
		change func(t *testing.T, d *Demo)
		is     error
		says   []string
	}{
		"no program": {
			func(_ *testing.T, d *Demo) { d.Program += "-missing" }, nil, []string{"hello-missing", "riklet", "make build"},
		},
		"no directory": {
			func(t *testing.T, d *Demo) {
				if err := os.WriteFile(d.ImageDir, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}, nil, []string{"images", "--image-dir"},
		},
		"another workload": {
			func(t *testing.T, d *Demo) {
				d.Client = newClient(t, interceptor.Funcs{}, node("here", metav1.ConditionTrue), foreign())
			},
			ErrForeign, []string{"workload hello", "--name"},
		},
		"port": {
			func(_ *testing.T, d *Demo) { d.CheckPort = func(context.Context, int32) error { return refusal } }, refusal, nil,
		},
		"no node": {
			func(t *testing.T, d *Demo) { d.Client = newClient(t, interceptor.Funcs{}) }, ErrNoNode, []string{"1m0s", "has no node", "--no-agent"},
		},
		"node not ready": {
			func(t *testing.T, d *Demo) {
				d.Client = newClient(t, interceptor.Funcs{}, node("here", metav1.ConditionFalse))
			},
			ErrNoNode, []string{"node here is not ready: Because: of a test"},
		},
		"no list of nodes": {
			func(t *testing.T, d *Demo) {
				d.Client = newClient(t, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return refusal }})
			}, ErrNoNode, []string{"listing the nodes", "nginx"},
		},
		"no answer": {
			func(_ *testing.T, d *Demo) {
				d.Get = func(context.Context, string) (string, error) { return "", errors.New("connection refused") }
			}, ErrNoAnswer, []string{"http://127.0.0.1:30080/", "1m0s", "connection refused", "hello-1 is Failed: ImagePullFailed: no such file", "rikctl why hello-1"},
		},
		"another program": {
			func(_ *testing.T, d *Demo) {
				d.Get = func(context.Context, string) (string, error) { return "<html>", nil }
			}, ErrNoAnswer, []string{"another program answers", "<html>"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDemo(t, node("here", metav1.ConditionTrue), instance("hello-1", rikv1alpha1.InstanceFailed))
				tc.change(t, d)
				_, err := d.Up(t.Context())
				if err == nil || tc.is != nil && !errors.Is(err, tc.is) {
					t.Fatalf("Up() = %v, want %v", err, tc.is)
				}
				for _, text := range tc.says {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("Up() = %q, which does not say %q", err, text)
					}
				}
			})
		})
	}
}

func TestUpIsCanceled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDemo(t)
		stopped := errors.New("stopped")
		ctx, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { stop(stopped) })
		if _, err := d.Up(ctx); !errors.Is(err, stopped) {
			t.Errorf("Up() = %v, want the cause of the cancellation", err)
		}
	})
}

func TestDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDemo(t, node("here", metav1.ConditionTrue))
		exists(t, d, false)
		if err := d.Down(t.Context()); err != nil {
			t.Errorf("Down() without a demo = %v", err)
		}
		if _, err := d.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.Client.Create(t.Context(), instance("hello-1", rikv1alpha1.InstanceDestroying)); err != nil {
			t.Fatal(err)
		}
		exists(t, d, true)
		// The instance needs a while to end.
		const ends = 3 * time.Second
		began := time.Now()
		time.AfterFunc(ends, func() {
			if err := d.Client.Delete(context.Background(), instance("hello-1", "")); err != nil {
				t.Error(err)
			}
		})
		if err := d.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < ends {
			t.Errorf("Down() returned after %s, before the instance had ended", took)
		}
		if err := d.Client.Get(t.Context(), types.NamespacedName{Namespace: Namespace, Name: "hello"}, &rikv1alpha1.Workload{}); !apierrors.IsNotFound(err) {
			t.Errorf("the workload after Down(): %v", err)
		}
		if _, err := os.Stat(d.ImageDir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the images after Down(): %v", err)
		}
	})
}

// exists checks what Exists reports.
func exists(t *testing.T, d *Demo, want bool) {
	t.Helper()
	if got, err := d.Exists(t.Context()); got != want || err != nil {
		t.Errorf("Exists() = %t, %v, want %t", got, err, want)
	}
}

func TestDownKeepsOthers(t *testing.T) {
	t.Parallel()
	d := newDemo(t, foreign())
	if found, err := d.Exists(t.Context()); found || !errors.Is(err, ErrForeign) {
		t.Errorf("Exists() = %t, %v, want %v", found, err, ErrForeign)
	}
	if err := d.Down(t.Context()); !errors.Is(err, ErrForeign) {
		t.Errorf("Down() = %v, want %v", err, ErrForeign)
	}
	d.workloadOf(t)
	other := filepath.Join(d.ImageDir, "other")
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if removed, err := d.RemoveImage(); removed || err != nil {
		t.Fatalf("RemoveImage() without an image = %t, %v", removed, err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another image is gone: %v", err)
	}
}

func TestDownTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDemo(t, instance("hello-1", rikv1alpha1.InstanceUnknown))
		exists(t, d, true) // an instance without its workload
		err := d.Down(t.Context())
		if !errors.Is(err, ErrNotRemoved) || !strings.Contains(err.Error(), "hello-1 is Unknown") {
			t.Errorf("Down() = %v, want %v and the instance", err, ErrNotRemoved)
		}
	})
}

func TestMachineNode(t *testing.T) {
	t.Parallel()
	cordoned, silent := node("cordoned", metav1.ConditionTrue), &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "silent"}}
	cordoned.Spec.Unschedulable = true
	nodes := []rikv1alpha1.Node{*node("a", metav1.ConditionTrue), *node("b", metav1.ConditionTrue), *cordoned, *silent}
	for _, tc := range []struct {
		machine Machine
		want    string
		says    string
	}{
		{Machine{NodeName: "b", ID: "id-of-a"}, "b", ""},
		{Machine{NodeName: "other", ID: "id-of-a"}, "a", ""},
		{Machine{NodeName: "other"}, "", "this machine (other) is not a node of the cluster, which has a, b, cordoned, silent"},
		{Machine{NodeName: "cordoned"}, "", "rikctl uncordon cordoned"},
		{Machine{NodeName: "silent"}, "", "has not reported yet"},
	} {
		got, err := tc.machine.node(nodes)
		if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%+v.node() = %q, %v, want %q, %q", tc.machine, got, err, tc.want, tc.says)
		}
	}
}

package instance

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/index"
	"rik.dev/rik/internal/controller/store"
)

// recording is a store that keeps a copy of what it is given, and answers with a changed copy of
// its own.
type recording struct {
	store.Instances
	got *rikv1alpha1.Instance
}

func (r *recording) write(_ context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	r.got = in.DeepCopy()
	out := in.DeepCopy()
	out.ResourceVersion = "8"
	return out, nil
}

func (r *recording) Bind(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return r.write(ctx, in)
}

func (r *recording) UpdateStatus(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return r.write(ctx, in)
}

func (r *recording) Update(ctx context.Context, in *rikv1alpha1.Instance) (*rikv1alpha1.Instance, error) {
	return r.write(ctx, in)
}

// TestAPassChangesNoSharedObject: the objects of the view are shared, and so are the scheduler's
// messages, which a later pass reads again. A pass writes without changing either.
func TestAPassChangesNoSharedObject(t *testing.T) {
	t.Parallel()
	finalizers := func(in *rikv1alpha1.Instance) {
		in.Finalizers = []string{"example.com/first", rikv1alpha1.FinalizerNode, "example.com/last"}
	}
	stuck := running(4)
	stuck.Phase, stuck.Reason, stuck.Message = "Destroying", "StopFailed", "container main is still running"
	ended := running(5)
	ended.Phase = rikv1alpha1.InstanceCompleted
	terminated := &Observation{Node: "n", Sequence: 6, Phase: rikv1alpha1.InstanceTerminated}
	for name, tc := range map[string]struct {
		changes []func(*rikv1alpha1.Instance)
		news    news
		written func(*rikv1alpha1.Instance) bool
	}{
		"bind": {nil, news{binding: &Binding{Node: "n", HostPorts: []int32{30080}}}, func(in *rikv1alpha1.Instance) bool {
			return in.Spec.NodeName == "n" && in.Status.Phase == rikv1alpha1.InstanceCreating && in.Status.HostPorts[0] == 30080
		}},
		"status": {[]func(*rikv1alpha1.Instance){bind}, news{observation: running(3)}, func(in *rikv1alpha1.Instance) bool {
			return in.Status.Phase == rikv1alpha1.InstanceRunning && len(in.Status.Containers) == 2
		}},
		"end": {[]func(*rikv1alpha1.Instance){bind}, news{observation: ended}, func(in *rikv1alpha1.Instance) bool {
			return in.Status.Phase == rikv1alpha1.InstanceCompleted && in.Status.FinishedAt != nil && !in.Status.Ready
		}},
		"a stop that fails": {[]func(*rikv1alpha1.Instance){bind, deleting(5)}, news{observation: stuck}, func(in *rikv1alpha1.Instance) bool {
			return in.Status.Reason == "StopFailed" && in.Status.Phase == rikv1alpha1.InstanceCreating
		}},
		"release": {[]func(*rikv1alpha1.Instance){bind, deleting(5), finalizers}, news{observation: terminated}, func(in *rikv1alpha1.Instance) bool {
			return cmp.Equal(in.Finalizers, []string{"example.com/first", "example.com/last"})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &recording{}
			r, in := reconciler(s, tc.changes...)
			r.news[in.UID] = &tc.news
			before, binding, observation := in.DeepCopy(), tc.news.binding, tc.news.observation
			wasBinding, wasObservation := cloneBinding(binding), cloneObservation(observation)
			if _, err := r.reconcile(t.Context(), index.Key(in)); err != nil {
				t.Fatal(err)
			}
			if s.got == nil || !tc.written(s.got) {
				t.Errorf("wrote %+v", s.got)
			}
			if diff := cmp.Diff(before, in); diff != "" {
				t.Errorf("the pass changed the object of the view (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(wasBinding, binding) + cmp.Diff(wasObservation, observation); diff != "" {
				t.Errorf("the pass changed the scheduler's message (-before +after):\n%s", diff)
			}
			if now := r.config.View.ByUID(in.UID); now == in || now.ResourceVersion != "8" {
				t.Errorf("the view has %+v, want the stored object", now)
			}
		})
	}
}

func cloneBinding(b *Binding) *Binding {
	if b == nil {
		return nil
	}
	return &Binding{Node: b.Node, HostPorts: append([]int32(nil), b.HostPorts...)}
}

func cloneObservation(o *Observation) *Observation {
	if o == nil {
		return nil
	}
	out := *o
	out.Status = o.Status.DeepCopy()
	return &out
}

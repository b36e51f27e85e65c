package instance_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/inprocess"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
)

// workload is a workload that passes validation.
func workload(name string) *rik.Workload {
	replicas, grace, limit := int32(1), int64(7), int32(10)
	return &rik.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"},
		Spec: rik.WorkloadSpec{
			Deploy: rik.DeployManual, Replicas: &replicas, RevisionHistoryLimit: &limit,
			Strategy: rik.UpdateStrategy{Type: rik.Recreate},
			InstanceTemplate: rik.InstanceTemplate{
				Kind: rik.KindPod, RestartPolicy: rik.RestartAlways, OnDisconnect: rik.DisconnectKeep, TerminationGracePeriodSeconds: &grace,
				Labels:     map[string]string{"app": name},
				Containers: []rik.Container{{Name: "main", Image: "nginx:1", ImagePullPolicy: rik.PullIfNotPresent}, {Name: "side", Image: "x:1", ImagePullPolicy: rik.PullIfNotPresent}},
			},
		},
	}
}

type fixture struct {
	registry.Stores
	direct   *inprocess.Instances
	workload *rik.Workload
	user     context.Context
}

func setup(t testing.TB, c registry.Config) *fixture {
	t.Helper()
	f := &fixture{Stores: etcd.Stores(t, c), user: registrytest.As(context.Background(), "team", "ann")}
	f.direct = inprocess.NewInstances(f.Instances)
	obj, err := f.Workloads.Workload.Create(f.user, workload("web"), nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f.workload = obj.(*rik.Workload)
	return f
}

func (f *fixture) create(t testing.TB, i *rik.Instance) *rik.Instance {
	t.Helper()
	obj, err := f.Instances.Instance.Create(f.user, i, nil, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj.(*rik.Instance)
}

func of(workload string) *rik.Instance {
	return &rik.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Spec: rik.InstanceSpec{Workload: workload}}
}

func TestCreate(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	in := of("web")
	in.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Ready: true}
	got := f.create(t, in)

	published := &rikv1alpha1.Workload{}
	if err := v1alpha1.Convert_rik_Workload_To_v1alpha1_Workload(f.workload, published, nil); err != nil {
		t.Fatal(err)
	}
	if want := revision.Name(published); got.Spec.Revision != want {
		t.Errorf("revision = %q, want %q", got.Spec.Revision, want)
	}
	if !strings.HasPrefix(got.Name, "web-") || len(got.Name) != len("web-")+5 {
		t.Errorf("name = %q, want web- and five characters", got.Name)
	}
	if diff := cmp.Diff(rik.InstanceStatus{Phase: rik.InstancePending}, got.Status); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{rikv1alpha1.FinalizerNode}, got.Finalizers); diff != "" {
		t.Errorf("finalizers (-want +got):\n%s", diff)
	}
	if got.Labels["app"] != "web" || got.Labels[rikv1alpha1.LabelWorkload] != "web" || got.OwnerReferences[0].UID != f.workload.UID {
		t.Errorf("metadata = %+v", got.ObjectMeta)
	}
	rev, err := f.Revisions.Get(f.user, got.Spec.Revision)
	if err != nil || rev.Revision != 1 || rev.Template.Containers[0].Image != "nginx:1" {
		t.Errorf("revision = %+v, %v", rev, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	for name, tc := range map[string]struct {
		instance *rik.Instance
		want     string
	}{
		"no workload":         {of(""), "spec.workload: Required"},
		"unknown workload":    {of("other"), "spec.workload: Not found"},
		"workload by a path":  {of("../web"), "spec.workload: Not found"},
		"unknown revision":    {&rik.Instance{Spec: rik.InstanceSpec{Workload: "web", Revision: "web-x"}}, "spec.revision: Invalid"},
		"a node of one's own": {&rik.Instance{Spec: rik.InstanceSpec{Workload: "web", NodeName: "n1"}}, "spec.nodeName: Forbidden"},
		"a hostile name":      {&rik.Instance{ObjectMeta: metav1.ObjectMeta{Name: "a/../../b"}, Spec: rik.InstanceSpec{Workload: "web"}}, "metadata.name: Invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := f.Instances.Instance.Create(f.user, tc.instance, nil, &metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Create = %v, want 422 with %q", err, tc.want)
			}
		})
	}
}

// TestConcurrentFirstInstances: many callers create the first revision of a workload
// concurrently. All must get the same one.
func TestConcurrentFirstInstances(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	var wg sync.WaitGroup
	errs := make([]error, 16)
	for n := range errs {
		wg.Go(func() {
			_, errs[n] = f.Instances.Instance.Create(f.user, of("web"), nil, &metav1.CreateOptions{})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	obj, err := f.Revisions.Revision.List(f.user, &internalversion.ListOptions{})
	if err != nil || len(obj.(*rik.WorkloadRevisionList).Items) != 1 {
		t.Errorf("revisions = %v, %v, want 1", obj, err)
	}
}

func TestDryRunLeavesNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	obj, err := f.Instances.Instance.Create(f.user, of("web"), nil, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || obj.(*rik.Instance).Spec.Revision == "" {
		t.Fatalf("Create = %v, %v", obj, err)
	}
	revisions, err := f.Revisions.Revision.List(f.user, &internalversion.ListOptions{})
	if err != nil || len(revisions.(*rik.WorkloadRevisionList).Items) != 0 {
		t.Errorf("revisions = %v, %v, want none", revisions, err)
	}
}

func TestUserUpdates(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	for name, tc := range map[string]struct {
		change func(*rik.Instance)
		want   string // of the error; empty means no error
	}{
		"label":           {func(i *rik.Instance) { i.Labels["mine"] = "yes" }, ""},
		"status is kept":  {func(i *rik.Instance) { i.Status.Phase = rik.InstanceRunning }, ""},
		"node":            {func(i *rik.Instance) { i.Spec.NodeName = "n1" }, "spec.nodeName"},
		"workload":        {func(i *rik.Instance) { i.Spec.Workload = "x" }, "spec"},
		"finalizer":       {func(i *rik.Instance) { i.Finalizers = nil }, "metadata.finalizers"},
		"label of ours":   {func(i *rik.Instance) { i.Labels[rikv1alpha1.LabelWorkload] = "x" }, "metadata.labels"},
		"without version": {func(i *rik.Instance) { i.ResourceVersion = "" }, "metadata.resourceVersion"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := f.create(t, of("web"))
			changed := i.DeepCopy()
			tc.change(changed)
			obj, _, err := f.Instances.Instance.Update(f.user, i.Name, rest.DefaultUpdatedObjectInfo(changed), nil, nil, false, &metav1.UpdateOptions{})
			if tc.want != "" {
				if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("Update = %v, want 422 with %q", err, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := obj.(*rik.Instance).Status.Phase; got != rik.InstancePending {
				t.Errorf("phase = %q, want it untouched", got)
			}
		})
	}
}

// TestConditionsFollowTheStatus: an instance has the condition Ready, like a pod, and its time
// changes with its status.
func TestConditionsFollowTheStatus(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	made := f.create(t, of("web"))
	if len(made.Status.Conditions) != 0 {
		t.Errorf("conditions of an unbound instance = %v", made.Status.Conditions)
	}
	i, err := f.direct.Get(t.Context(), "team", made.Name)
	if err != nil {
		t.Fatal(err)
	}
	var since metav1.Time
	for _, step := range []struct {
		phase rikv1alpha1.InstancePhase
		ready bool
		want  metav1.ConditionStatus
		kept  bool // unchanged since the previous step
	}{
		{rikv1alpha1.InstanceCreating, false, metav1.ConditionFalse, false},
		{rikv1alpha1.InstanceRunning, false, metav1.ConditionFalse, true},
		{rikv1alpha1.InstanceRunning, true, metav1.ConditionTrue, false},
		{rikv1alpha1.InstanceUnknown, false, metav1.ConditionUnknown, false},
		{rikv1alpha1.InstanceFailed, false, metav1.ConditionFalse, false},
	} {
		i.Spec.NodeName, i.Status.Phase, i.Status.Ready = "n1", step.phase, step.ready
		i.Status.Conditions = nil // a writer need not set them
		if i, err = f.direct.Update(t.Context(), i); err != nil {
			t.Fatal(err)
		}
		got := i.Status.Conditions
		if len(got) != 1 || got[0].Type != rikv1alpha1.ConditionReady || got[0].Status != step.want || got[0].LastTransitionTime.IsZero() {
			t.Fatalf("%s, ready %v: conditions = %v, want Ready %s", step.phase, step.ready, got, step.want)
		}
		if step.kept && !got[0].LastTransitionTime.Equal(&since) {
			t.Errorf("%s: it is so since %v, want %v", step.phase, got[0].LastTransitionTime, since)
		}
		since = got[0].LastTransitionTime
	}
	if err := f.direct.Delete(t.Context(), "team", i.Name, "", nil); err != nil {
		t.Fatal(err)
	}
	if i, err = f.direct.Get(t.Context(), "team", i.Name); err != nil || i.Status.Conditions[0].Status != metav1.ConditionFalse {
		t.Errorf("after the deletion: %+v, %v", i, err)
	}
}

// TestFinalizerStaysUntilTheEnd: even an administrator cannot remove the finalizer of a running
// instance. Otherwise no node would be informed of its deletion.
func TestFinalizerStaysUntilTheEnd(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	admin := registrytest.As(t.Context(), "team", "root", user.SystemPrivilegedGroup)
	take := func(i *rik.Instance) error {
		changed := i.DeepCopy()
		changed.Finalizers = nil
		_, _, err := f.Instances.Instance.Update(admin, i.Name, rest.DefaultUpdatedObjectInfo(changed), nil, nil, false, &metav1.UpdateOptions{})
		return err
	}
	i := f.create(t, of("web"))
	if err := take(i); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.finalizers") {
		t.Errorf("Update = %v, want 422 that names the field", err)
	}
	if _, _, err := f.Instances.Instance.Delete(admin, i.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	obj, err := f.Instances.Instance.Get(admin, i.Name, &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := take(obj.(*rik.Instance)); err != nil {
		t.Errorf("Update of what is being deleted = %v", err)
	}
	if _, err := f.Instances.Instance.Get(admin, i.Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("Get = %v, want it gone", err)
	}
}

// TestApplyAgain applies a manifest that lacks the fields that the server set.
func TestApplyAgain(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	i := f.create(t, of("web"))
	again := i.DeepCopy()
	again.Spec.Revision = ""
	obj, _, err := f.Instances.Instance.Update(f.user, i.Name, rest.DefaultUpdatedObjectInfo(again), nil, nil, false, &metav1.UpdateOptions{})
	if err != nil || obj.(*rik.Instance).Spec.Revision != i.Spec.Revision {
		t.Errorf("Update = %+v, %v", obj, err)
	}
}

func TestLifecycle(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	made := f.create(t, of("web"))
	ctx := t.Context()

	i, err := f.direct.Get(ctx, "team", made.Name)
	if err != nil {
		t.Fatal(err)
	}
	i.Spec.NodeName, i.Status.Phase = "n1", rikv1alpha1.InstanceCreating
	bound, err := f.direct.Update(ctx, i)
	if err != nil || bound.Spec.NodeName != "n1" || bound.Status.Phase != rikv1alpha1.InstanceCreating || bound.Generation != 2 {
		t.Fatalf("Update = %+v, %v", bound, err)
	}
	if _, err := f.direct.Update(ctx, i); !apierrors.IsConflict(err) {
		t.Errorf("Update with an old version = %v, want 409", err)
	}
	rebound := bound.DeepCopy()
	rebound.Spec.NodeName = "n2"
	if _, err := f.direct.Update(ctx, rebound); !apierrors.IsInvalid(err) {
		t.Errorf("rebinding = %v, want 422", err)
	}
	bound.Status.Phase, bound.Labels = rikv1alpha1.InstanceRunning, nil
	running, err := f.direct.UpdateStatus(ctx, bound)
	if err != nil || running.Status.Phase != rikv1alpha1.InstanceRunning || running.Labels["app"] != "web" {
		t.Fatalf("UpdateStatus = %+v, %v", running, err)
	}
	selected, err := f.Instances.Instance.List(f.user, &internalversion.ListOptions{FieldSelector: fields.SelectorFromSet(fields.Set{"spec.nodeName": "n1", "status.phase": "Running"})})
	if err != nil || len(selected.(*rik.InstanceList).Items) != 1 {
		t.Errorf("List by fields = %v, %v, want 1", selected, err)
	}
}

// TestDeletion marks, keeps and removes an instance, with two writes in total.
func TestDeletion(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	ctx := t.Context()
	i := f.create(t, of("web"))
	if err := f.direct.Delete(ctx, "team", i.Name, "other", nil); !apierrors.IsConflict(err) {
		t.Errorf("Delete of another UID = %v, want 409", err)
	}
	if err := f.direct.Delete(ctx, "team", i.Name, i.UID, nil); err != nil {
		t.Fatal(err)
	}
	marked, err := f.direct.Get(ctx, "team", i.Name)
	if err != nil || marked.DeletionTimestamp == nil || *marked.DeletionGracePeriodSeconds != 7 || marked.Status.Phase != rikv1alpha1.InstanceDestroying {
		t.Fatalf("marked = %+v, %v, want the revision's grace of 7 s and phase Destroying", marked, err)
	}
	version := marked.ResourceVersion
	if err := f.direct.Delete(ctx, "team", i.Name, "", nil); err != nil {
		t.Fatal(err)
	}
	if again, err := f.direct.Get(ctx, "team", i.Name); err != nil || again.ResourceVersion != version {
		t.Errorf("deleting again wrote: %v, %v", again, err)
	}
	marked.Finalizers = nil
	if _, err := f.direct.Update(ctx, marked); err != nil {
		t.Fatal(err)
	}
	if _, err := f.direct.Get(ctx, "team", i.Name); !apierrors.IsNotFound(err) {
		t.Errorf("Get = %v, want 404", err)
	}
}

func TestForcedDeletion(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	i := f.create(t, of("web"))
	if err := f.direct.Delete(t.Context(), "team", i.Name, "", nil); err != nil {
		t.Fatal(err)
	}
	var zero int64
	if _, _, err := f.Instances.Instance.Delete(f.user, i.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	forced, err := f.direct.Get(t.Context(), "team", i.Name)
	if err != nil || *forced.DeletionGracePeriodSeconds != 0 || len(forced.Finalizers) != 1 {
		t.Errorf("forced = %+v, %v, want grace 0 and the finalizer left to the controller", forced, err)
	}
}

func TestDeletingWorkloadStartsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	w := f.workload.DeepCopy()
	w.Finalizers = []string{"example.com/hold"}
	if _, _, err := f.Workloads.Workload.Update(f.user, w.Name, rest.DefaultUpdatedObjectInfo(w), nil, nil, false, &metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Workloads.Workload.Delete(f.user, w.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := f.Instances.Instance.Create(f.user, of("web"), nil, &metav1.CreateOptions{})
	if !apierrors.IsConflict(err) {
		t.Errorf("Create = %v, want 409", err)
	}
}

// TestFault09NamesAreNeverPatterns uses names that are prefixes of each other and names with
// special characters of query languages. Each name matches only itself.
func TestFault09NamesAreNeverPatterns(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	if _, err := f.Workloads.Workload.Create(f.user, workload("web-two"), nil, &metav1.CreateOptions{}); err != nil {
		t.Errorf("a longer name is refused: %v", err)
	}
	for _, name := range []string{"web%", "w_b", "web' OR '1'='1", "%"} {
		if _, err := f.Workloads.Workload.Get(f.user, name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err) {
			t.Errorf("Get(%q) = %v, want nothing found", name, err)
		}
	}
	i := f.create(t, of("web"))
	f.create(t, of("web-two"))
	if err := f.direct.Delete(t.Context(), "team", i.Name, "", nil); err != nil {
		t.Fatal(err)
	}
	obj, err := f.Instances.Instance.List(f.user, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.workload", "web-two")})
	if err != nil || len(obj.(*rik.InstanceList).Items) != 1 || obj.(*rik.InstanceList).Items[0].DeletionTimestamp != nil {
		t.Errorf("instances of web-two = %v, %v, want one untouched", obj, err)
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	f := setup(t, registry.Config{})
	code, zero, finished := int32(1), int32(0), metav1.Now()
	for name, tc := range map[string]struct {
		change                  func(*rik.Instance)
		ready, status, restarts string
	}{
		"pending":   {func(i *rik.Instance) { i.Status.Phase = rik.InstancePending }, "0/-", "Pending", "0"},
		"no status": {func(*rik.Instance) {}, "0/-", "Pending", "0"},
		"running": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Containers: []rik.ContainerStatus{{State: rik.ContainerRunning, Ready: true}, {State: rik.ContainerRunning}}}
		}, "1/2", "Running", "0"},
		"crashing": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Containers: []rik.ContainerStatus{{State: rik.ContainerWaiting, Reason: "CrashLoopBackOff", RestartCount: 3, FinishedAt: &finished}}}
		}, "0/1", "CrashLoopBackOff", "3 (0s ago)"},
		"exited well": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Containers: []rik.ContainerStatus{{State: rik.ContainerExited, Reason: "Completed", ExitCode: &zero}}}
		}, "0/1", "Running", "0"},
		"init": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceCreating, InitContainers: []rik.ContainerStatus{{State: rik.ContainerExited, Reason: "Error", ExitCode: &code}}}
		}, "0/-", "Init:Error", "0"},
		"init again": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{
				Phase:          rik.InstanceCreating,
				InitContainers: []rik.ContainerStatus{{State: rik.ContainerExited, ExitCode: &zero, RestartCount: 1}, {State: rik.ContainerRunning, RestartCount: 1}},
				Containers:     []rik.ContainerStatus{{State: rik.ContainerWaiting, RestartCount: 4}},
			}
		}, "0/1", "Creating", "2"},
		"running again": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Containers: []rik.ContainerStatus{
				{State: rik.ContainerRunning, Ready: true, RestartCount: 3, LastState: &rik.ContainerEnd{FinishedAt: &finished}},
			}}
		}, "1/1", "Running", "3 (0s ago)"},
		"running after a reboot": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{
				Phase:          rik.InstanceRunning,
				InitContainers: []rik.ContainerStatus{{State: rik.ContainerExited, ExitCode: &zero, RestartCount: 1}},
				Containers:     []rik.ContainerStatus{{State: rik.ContainerRunning, Ready: true, RestartCount: 1}},
			}
		}, "1/1", "Running", "1"},
		"failed": {func(i *rik.Instance) { i.Status = rik.InstanceStatus{Phase: rik.InstanceFailed, Reason: "OOMKilled"} }, "0/-", "OOMKilled", "0"},
		"suspended": {func(i *rik.Instance) {
			i.Status = rik.InstanceStatus{Phase: rik.InstanceRunning, Suspended: true, Containers: []rik.ContainerStatus{{State: rik.ContainerRunning}}}
		}, "0/1", "Suspended", "0"},
		"completed": {func(i *rik.Instance) { i.Status.Phase = rik.InstanceCompleted }, "0/-", "Completed", "0"},
		"ending":    {func(i *rik.Instance) { i.Status.Phase, i.DeletionTimestamp = rik.InstanceRunning, &finished }, "0/-", "Destroying", "0"},
		"lost":      {func(i *rik.Instance) { i.Status.Phase, i.DeletionTimestamp = rik.InstanceUnknown, &finished }, "0/-", "Unknown", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := of("web")
			tc.change(i)
			table, err := f.Instances.Instance.ConvertToTable(t.Context(), i, nil)
			if err != nil {
				t.Fatal(err)
			}
			cells := map[string]any{}
			for n, c := range table.ColumnDefinitions {
				cells[c.Name] = table.Rows[0].Cells[n]
			}
			got := []any{cells["Ready"], cells["Status"], cells["Restarts"]}
			// The time since a restart grows while the test runs.
			if text := got[2].(string); strings.HasPrefix(text, "3 (") && strings.HasSuffix(text, " ago)") {
				got[2] = tc.restarts
			}
			if diff := cmp.Diff([]any{tc.ready, tc.status, tc.restarts}, got); diff != "" {
				t.Errorf("cells (-want +got):\n%s", diff)
			}
		})
	}
}

// BenchmarkCreate measures the creation of one instance by the controller.
func BenchmarkCreate(b *testing.B) {
	f := setup(b, registry.Config{})
	first := f.create(b, of("web"))
	template := &rikv1alpha1.Instance{}
	if err := v1alpha1.Convert_rik_Instance_To_v1alpha1_Instance(first, template, nil); err != nil {
		b.Fatal(err)
	}
	template.Name, template.GenerateName, template.UID, template.ResourceVersion = "", "web-", "", ""
	b.ReportAllocs()
	b.SetParallelism(128)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := f.direct.Create(context.Background(), template); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

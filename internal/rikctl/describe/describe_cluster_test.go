package describe

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/testkit/golden"
)

func sampleCluster() *workloadv1alpha1.Cluster {
	heartbeat, evict := rikctltest.At(9), rikctltest.At(20)
	return &workloadv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: "east", UID: "5d2f", CreationTimestamp: rikctltest.At(8), Labels: map[string]string{"region": "eu"},
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: rikctltest.Canary, "note": "rack 7"}},
		Spec: workloadv1alpha1.ClusterSpec{
			KubeconfigSecretRef: &workloadv1alpha1.SecretKeyReference{Namespace: "rik-clusters", Name: "east"},
			SyncMode:            workloadv1alpha1.SyncPull, Unschedulable: true, EvictAfter: &evict, ClusterScopedResources: []string{"widgets.example.com"},
			Taints: []workloadv1alpha1.ClusterTaint{{Key: "gpu", Value: "yes", Effect: workloadv1alpha1.TaintNoExecute}, {Key: "old", Effect: workloadv1alpha1.TaintNoSchedule}},
		},
		Status: workloadv1alpha1.ClusterStatus{
			Location: "192.0.2.7:6443", UID: "77aa", Version: "v1.36.3", LastHeartbeatTime: &heartbeat,
			SyncedResources: []string{"configmaps", "deployments.apps"}, SameAs: "old-east",
			ResourceProblems: []workloadv1alpha1.ResourceProblem{{Resource: "deployments.apps", Reason: workloadv1alpha1.ResourceNotReadable,
				Message: "the physical cluster does not let objects of this type be listed", Since: rikctltest.At(9)}},
			PausedDeletes: &workloadv1alpha1.PausedDeletes{Namespaces: []workloadv1alpha1.PausedNamespace{{Namespace: "", Deletes: 7}, {Namespace: "team", Deletes: 120}}},
			Capacity:      corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi")},
			Allocatable:   corev1.ResourceList{"cpu": resource.MustParse("15500m"), "memory": resource.MustParse("60Gi")},
			Conditions: []metav1.Condition{{Type: "Ready", Status: "False", Reason: "ErrorHeartbeatMissed",
				Message: "the syncer has not sent a heartbeat since 2026-11-22T09:00:00Z", LastTransitionTime: rikctltest.At(10)},
				{Type: "Fencing", Status: "True", Reason: "Acknowledged", Message: "the cluster stops fenced workloads by itself", LastTransitionTime: rikctltest.At(9)}},
		},
	}
}

func TestDescribeClusterGolden(t *testing.T) {
	t.Parallel()
	inline := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "west", CreationTimestamp: rikctltest.At(8)}, Spec: workloadv1alpha1.ClusterSpec{KubeConfig: rikctltest.Canary}}
	for name, cluster := range map[string]*workloadv1alpha1.Cluster{"describe-cluster": sampleCluster(), "describe-cluster-inline": inline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rendered(renderers["Cluster"], cluster, &details{})
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(got, rikctltest.Canary) {
				t.Errorf("the description holds the kubeconfig:\n%s", got)
			}
			golden.Compare(t, name+".golden", []byte(got))
		})
	}
}

// Package rikctltest has objects and files for the tests of rikctl.
package rikctltest

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// At returns an hour of the day on which all events of these tests happen.
func At(hour int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 11, 22, hour, 0, 0, 0, time.UTC))
}

// Template returns a template with a value in the fields that commands print.
func Template() rikv1alpha1.InstanceTemplate {
	return rikv1alpha1.InstanceTemplate{
		Kind: rikv1alpha1.KindPod, RestartPolicy: rikv1alpha1.RestartAlways,
		InitContainers: []rikv1alpha1.Container{{Name: "prepare", Image: "busybox", Command: []string{"sh", "-c"}, Args: []string{"true"}}},
		Containers: []rikv1alpha1.Container{{
			Name: "web", Image: "registry.example/web:1.4", User: "1000:1000", WorkingDir: "/srv",
			Env: []rikv1alpha1.EnvVar{
				{Name: "MODE", Value: "live"},
				{Name: "PASSWORD", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{Name: "db", Key: "password"}}},
				{Name: "NODE", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "spec.nodeName"}},
			},
			EnvFrom:   []rikv1alpha1.EnvFromSource{{Prefix: "APP_", ConfigMap: "settings"}},
			Ports:     []rikv1alpha1.Port{{Port: 80, TargetPort: 8080, Protocol: rikv1alpha1.ProtocolTCP, Type: rikv1alpha1.PortNodePort}},
			Resources: rikv1alpha1.Resources{Limits: rikv1alpha1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")}},
			VolumeMounts: []rikv1alpha1.VolumeMount{
				{Name: "data", MountPath: "/data"}, {Name: "settings", MountPath: "/etc/web", SubPath: "web", ReadOnly: true}},
			LivenessProbe: &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Path: "/live", Port: 8080},
				PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3},
		}},
		Volumes: []rikv1alpha1.Volume{
			{Name: "data", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}, {Name: "settings", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "settings"}}},
		NodeSelector: map[string]string{"disk": "ssd"},
		Tolerations:  []rikv1alpha1.Toleration{{Key: "gpu", Operator: rikv1alpha1.TolerationExists, Effect: rikv1alpha1.TaintNoSchedule}},
		Priority:     5,
	}
}

// Workload returns a workload with a value in the fields that commands print.
func Workload() *rikv1alpha1.Workload {
	return &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "0e4c1da4-0277-4088-9f37-8f445cbe8e46",
			Labels: map[string]string{"tier": "front", "app": "web"}, CreationTimestamp: At(8), Generation: 2},
		Spec: rikv1alpha1.WorkloadSpec{
			Deploy: rikv1alpha1.DeployAutomatic, Replicas: new(int32(3)),
			Strategy:         rikv1alpha1.UpdateStrategy{Type: rikv1alpha1.RollingUpdate, MaxSurge: new(intstr.FromString("25%"))},
			InstanceTemplate: Template(),
		},
		Status: rikv1alpha1.WorkloadStatus{
			ObservedGeneration: 2, Replicas: 3, ReadyReplicas: 2, UpdatedReplicas: 3, PendingReplicas: 1, CurrentRevision: "web-b2c4d6f8h2",
			Addresses:  []string{"10.63.0.4", "192.0.2.7"},
			Conditions: []metav1.Condition{{Type: "Available", Status: "False", Reason: "MinimumReplicasUnavailable", Message: "2 of 3 are ready", LastTransitionTime: At(9)}},
		},
	}
}

// Instance returns a running instance of Workload.
func Instance() *rikv1alpha1.Instance {
	started := At(9)
	return &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Name: "web-x7k2p", Namespace: "shop", UID: "6f0d", CreationTimestamp: At(9)},
		Spec:       rikv1alpha1.InstanceSpec{Workload: "web", Revision: "web-b2c4d6f8h2", NodeName: "worker-1"},
		Status: rikv1alpha1.InstanceStatus{
			Phase: rikv1alpha1.InstanceRunning, Reason: "CrashLoopBackOff", Message: "container web exited with 1 three times",
			HostAddress: "192.0.2.7", HostPorts: []int32{30080, 30081}, StartedAt: &started,
			InitContainers: []rikv1alpha1.ContainerStatus{{Name: "prepare", State: rikv1alpha1.ContainerExited, Reason: "Completed", ExitCode: new(int32(0))}},
			Containers: []rikv1alpha1.ContainerStatus{{Name: "web", State: rikv1alpha1.ContainerWaiting, Reason: "CrashLoopBackOff",
				RestartCount: 3, ExitCode: new(int32(137)), FinishedAt: &started, ImageDigest: "sha256:1234",
				LastState: &rikv1alpha1.ContainerEnd{Reason: "OOMKilled", Message: "it used more memory than its limit", ExitCode: 137,
					StartedAt: &started, FinishedAt: &started}}},
		},
	}
}

// Node returns a node with a value in the fields that commands print.
func Node() *rikv1alpha1.Node {
	return &rikv1alpha1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "77aa", CreationTimestamp: At(7), Labels: map[string]string{"disk": "ssd"}},
		Spec: rikv1alpha1.NodeSpec{PodCIDR: "10.62.3.0/24", Unschedulable: true, Taints: []rikv1alpha1.Taint{{Key: "gpu", Value: "yes", Effect: rikv1alpha1.TaintNoSchedule},
			{Key: "rik.dev/unschedulable", Effect: rikv1alpha1.TaintNoSchedule}}},
		Status: rikv1alpha1.NodeStatus{
			Capacity:    rikv1alpha1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("24684084Ki"), "instances": resource.MustParse("500")},
			Allocatable: rikv1alpha1.ResourceList{"cpu": resource.MustParse("1800m"), "memory": resource.MustParse("23Gi")},
			Info: rikv1alpha1.NodeInfo{Hostname: "worker-1", InternalAddress: "192.0.2.7", MachineID: "abc", BootID: "def", Distribution: "Debian", DistributionVersion: "12",
				OperatingSystem: "linux", Architecture: "amd64", KernelVersion: "6.18.0", AgentVersion: "v0.1.0", RuntimeVersion: "runc 1.5.2",
				CPUs: 2, MemoryBytes: 24 << 30, DiskBytes: 100 << 30, Kinds: []rikv1alpha1.WorkloadKind{rikv1alpha1.KindPod, rikv1alpha1.KindApp}},
			Conditions: []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Heartbeat", LastTransitionTime: At(7)}},
		},
	}
}

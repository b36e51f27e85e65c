package validation_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/install"
	"rik.dev/rik/internal/apiserver/apis/rik/validation"
)

// defaulted returns a workload after defaulting, as it is stored.
func defaulted(t testing.TB, change func(*rikv1alpha1.Workload)) *rik.Workload {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	w := &rikv1alpha1.Workload{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "web"},
		Spec: rikv1alpha1.WorkloadSpec{InstanceTemplate: rikv1alpha1.InstanceTemplate{
			Containers: []rikv1alpha1.Container{{Name: "main", Image: "nginx:1"}},
		}},
	}
	if change != nil {
		change(w)
	}
	scheme.Default(w)
	out := &rik.Workload{}
	if err := scheme.Convert(w, out, nil); err != nil {
		t.Fatal(err)
	}
	return out
}

// paths returns the paths of errors without their messages.
func paths(errs field.ErrorList) []string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Field)
	}
	return out
}

type workloadCase struct {
	name   string
	change func(*rikv1alpha1.Workload)
	want   []string
}

func check(t *testing.T, cases []workloadCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			errs := validation.Workload(defaulted(t, tc.change))
			if diff := cmp.Diff(tc.want, paths(errs)); diff != "" {
				t.Errorf("Workload (-want +got):\n%s\n%v", diff, errs.ToAggregate())
			}
		})
	}
}

func first(w *rikv1alpha1.Workload) *rikv1alpha1.Container { return &w.Spec.Containers[0] }

func ptr[T any](v T) *T { return &v }

func full(w *rikv1alpha1.Workload) {
	c := first(w)
	c.Command, c.Args, c.WorkingDir, c.User = []string{"sh", "-c"}, []string{"a\nb", ""}, "/srv", "app:101"
	c.Env = []rikv1alpha1.EnvVar{
		{Name: "A", Value: "1"},
		{Name: "B", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: "cm", Key: "k.txt"}}},
		{Name: "C", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{Name: "s", Key: "k"}}},
		{Name: "D", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "spec.nodeName"}},
	}
	c.EnvFrom = []rikv1alpha1.EnvFromSource{{Prefix: "P_", ConfigMap: "cm"}, {Secret: "s"}}
	c.Ports = []rikv1alpha1.Port{{Name: "http", Port: 80, TargetPort: 8080}, {Port: 80, Protocol: rikv1alpha1.ProtocolUDP}}
	c.Resources = rikv1alpha1.Resources{
		Requests: rikv1alpha1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi"), "disk": resource.MustParse("1Gi")},
		Limits:   rikv1alpha1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi")},
	}
	c.LivenessProbe = &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 8080, Headers: map[string]string{"Host": "x"}}}
	c.ReadinessProbe = &rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 8080}, SuccessThreshold: 2}
	c.StartupProbe = &rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"true"}}}
	c.Security = &rikv1alpha1.Security{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"ALL"}}
	c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "tmp", MountPath: "/tmp", SubPath: "a/b"}, {Name: "cm", MountPath: "/etc/x"}}
	w.Spec.InitContainers = []rikv1alpha1.Container{{Name: "init", Image: "localhost:5001/x/y@sha256:" + strings.Repeat("a", 64)}}
	w.Spec.Volumes = []rikv1alpha1.Volume{
		{Name: "tmp", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true, SizeLimitBytes: 1 << 20}},
		{Name: "cm", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "cm", Items: []rikv1alpha1.KeyToPath{{Key: "a", Path: "b/c"}}}},
		{Name: "host", HostPath: &rikv1alpha1.HostPathVolume{Path: "/srv"}},
	}
	w.Spec.Labels, w.Spec.Annotations = map[string]string{"app": "web"}, map[string]string{"note": "any text"}
	w.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	w.Spec.Affinity = &rikv1alpha1.Affinity{
		NodeRequired:      []rikv1alpha1.NodeTerm{{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "In", Values: []string{"b"}}}}},
		NodePreferred:     []rikv1alpha1.WeightedNodeTerm{{Weight: 100, Term: rikv1alpha1.NodeTerm{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Exists"}}}}},
		InstanceForbidden: []rikv1alpha1.InstanceTerm{{Selector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: "kubernetes.io/hostname"}},
	}
	w.Spec.Tolerations = []rikv1alpha1.Toleration{{Operator: "Exists"}, {Key: "k", Value: "v", Effect: "NoExecute"}}
	w.Spec.TopologySpread = []rikv1alpha1.TopologySpread{{MaxSkew: 1, TopologyKey: "zone"}}
	w.Spec.Hostname, w.Spec.Runtime, w.Spec.Priority = "web", "kata", -5
	w.Spec.ImagePullSecrets = []string{"registry"}
}

func TestWorkload(t *testing.T) {
	t.Parallel()
	check(t, []workloadCase{
		{"smallest", nil, nil},
		{"full", full, nil},
		{"no name", func(w *rikv1alpha1.Workload) { w.Name = "" }, []string{"metadata.name"}},
		{"name of 52", func(w *rikv1alpha1.Workload) { w.Name = strings.Repeat("a", 52) }, nil},
		{"name of 53", func(w *rikv1alpha1.Workload) { w.Name = strings.Repeat("a", 53) }, []string{"metadata.name"}},
		{"name with a path", func(w *rikv1alpha1.Workload) { w.Name = "../etc" }, []string{"metadata.name"}},
		{"name with a quote", func(w *rikv1alpha1.Workload) { w.Name = "a';drop" }, []string{"metadata.name"}},
		{"long generateName", func(w *rikv1alpha1.Workload) { w.Name, w.GenerateName = "", strings.Repeat("a", 50) }, []string{"metadata.generateName", "metadata.name"}},
		{"unknown deploy", func(w *rikv1alpha1.Workload) { w.Spec.Deploy = "Sometimes" }, []string{"spec.deploy"}},
		{"negative replicas", func(w *rikv1alpha1.Workload) { w.Spec.Replicas = ptr(int32(-1)) }, []string{"spec.replicas"}},
		{"absurd replicas", func(w *rikv1alpha1.Workload) { w.Spec.Replicas = ptr(int32(2_000_000_000)) }, []string{"spec.replicas"}},
		{"unknown strategy", func(w *rikv1alpha1.Workload) { w.Spec.Strategy.Type = "Blue" }, []string{"spec.strategy.type"}},
		{"surge text", func(w *rikv1alpha1.Workload) { w.Spec.Strategy.MaxSurge = ptr(intstr.FromString("many")) }, []string{"spec.strategy.maxSurge"}},
		{"surge absurd", func(w *rikv1alpha1.Workload) {
			w.Spec.Strategy.MaxSurge = ptr(intstr.FromString("99999999999999999999%"))
		}, []string{"spec.strategy.maxSurge"}},
		{"unavailable over 100%", func(w *rikv1alpha1.Workload) { w.Spec.Strategy.MaxUnavailable = ptr(intstr.FromString("101%")) }, []string{"spec.strategy.maxUnavailable"}},
		{"a rollout that cannot move", func(w *rikv1alpha1.Workload) {
			w.Spec.Strategy.MaxSurge, w.Spec.Strategy.MaxUnavailable = ptr(intstr.FromInt32(0)), ptr(intstr.FromString("00%"))
		}, []string{"spec.strategy.maxUnavailable"}},
		{"surge with Recreate", func(w *rikv1alpha1.Workload) {
			w.Spec.Strategy = rikv1alpha1.UpdateStrategy{Type: rikv1alpha1.Recreate, MaxSurge: ptr(intstr.FromInt32(1))}
		}, []string{"spec.strategy.maxSurge"}},
		{"deadline 0", func(w *rikv1alpha1.Workload) { w.Spec.Strategy.ProgressDeadlineSeconds = ptr(int32(0)) }, []string{"spec.strategy.progressDeadlineSeconds"}},
		{"disruption negative", func(w *rikv1alpha1.Workload) { w.Spec.Disruption.MaxUnavailable = ptr(intstr.FromInt32(-1)) }, []string{"spec.disruption.maxUnavailable"}},
		{"history negative", func(w *rikv1alpha1.Workload) { w.Spec.RevisionHistoryLimit = ptr(int32(-1)) }, []string{"spec.revisionHistoryLimit"}},
		{"replaceAfter negative", func(w *rikv1alpha1.Workload) { w.Spec.ReplaceAfterSeconds = ptr(int32(-1)) }, []string{"spec.replaceAfterSeconds"}},
		{"unknown kind", func(w *rikv1alpha1.Workload) { w.Spec.Kind = "Job" }, []string{
			"spec.containers", "spec.kind",
		}},
		{"no container", func(w *rikv1alpha1.Workload) { w.Spec.Containers = nil }, []string{"spec.containers"}},
		{"too many containers", func(w *rikv1alpha1.Workload) {
			for i := range 65 {
				w.Spec.InitContainers = append(w.Spec.InitContainers, rikv1alpha1.Container{Name: "i" + strings.Repeat("x", i%50) + string(rune('a'+i/50)), Image: "x"})
			}
		}, []string{"spec.containers"}},
		{"restart policy", func(w *rikv1alpha1.Workload) { w.Spec.RestartPolicy = "Perhaps" }, []string{"spec.restartPolicy"}},
		{"disconnect", func(w *rikv1alpha1.Workload) { w.Spec.OnDisconnect = "Panic" }, []string{"spec.onDisconnect"}},
		{"grace", func(w *rikv1alpha1.Workload) { w.Spec.TerminationGracePeriodSeconds = ptr(int64(-1)) }, []string{"spec.terminationGracePeriodSeconds"}},
		{"hostname", func(w *rikv1alpha1.Workload) { w.Spec.Hostname = "a.b" }, []string{"spec.hostname"}},
		{"runtime path", func(w *rikv1alpha1.Workload) { w.Spec.Runtime = "/bin/sh" }, []string{"spec.runtime"}},
		{"pull secrets", func(w *rikv1alpha1.Workload) { w.Spec.ImagePullSecrets = []string{"a", "a", "B"} }, []string{"spec.imagePullSecrets[1]", "spec.imagePullSecrets[2]"}},
		{"priority", func(w *rikv1alpha1.Workload) { w.Spec.Priority = 2_000_000_000 }, []string{"spec.priority"}},
		{"label", func(w *rikv1alpha1.Workload) { w.Spec.Labels = map[string]string{"a b": "c"} }, []string{"spec.labels"}},
		{"reserved label", func(w *rikv1alpha1.Workload) { w.Spec.Labels = map[string]string{"rik.dev/workload": "x"} }, []string{"spec.labels[rik.dev/workload]"}},
		{"annotations too large", func(w *rikv1alpha1.Workload) {
			w.Spec.Annotations = map[string]string{"a": strings.Repeat("x", 300<<10)}
		}, []string{"spec.annotations"}},
	})
}

func function(w *rikv1alpha1.Workload) {
	w.Spec.Kind, w.Spec.Containers = rikv1alpha1.KindFunction, nil
	w.Spec.Function = &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: "https://example.com/rootfs.ext4", SHA256: strings.Repeat("0", 64)}}
}

func TestKinds(t *testing.T) {
	t.Parallel()
	app := func(w *rikv1alpha1.Workload) {
		w.Spec.Kind, w.Spec.Containers = rikv1alpha1.KindApp, nil
		w.Spec.App = &rikv1alpha1.App{Repo: "https://example.com/app-{version}.tar.gz", Version: "1.0", Command: []string{"./app"}, Ports: []rikv1alpha1.Port{{Port: 80}}}
	}
	on := func(base, change func(*rikv1alpha1.Workload)) func(*rikv1alpha1.Workload) {
		return func(w *rikv1alpha1.Workload) { base(w); change(w) }
	}
	check(t, []workloadCase{
		{"function", function, nil},
		{"app", app, nil},
		{"function from an image", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Execution = rikv1alpha1.FunctionExecution{Image: "nginx", Command: []string{"x"}}
			w.Spec.Function.Exposure = &rikv1alpha1.Port{Port: 46000, TargetPort: 8080, Type: rikv1alpha1.PortNodePort}
		}), nil},
		{"function without function", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function = nil }), []string{"spec.function"}},
		{"function with neither", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution = rikv1alpha1.FunctionExecution{} }), []string{"spec.function.execution"}},
		{"function with both", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Image = "nginx" }), []string{"spec.function.execution.image"}},
		{"rootfs scheme", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Rootfs = "ftp://x/y" }), []string{"spec.function.execution.rootfs"}},
		{"rootfs path", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Rootfs = "/a/../b" }), []string{"spec.function.execution.rootfs"}},
		{"rootfs password", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Rootfs = "https://u:p@x/y" }), []string{"spec.function.execution.rootfs"}},
		{"rootfs broken", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Rootfs = "http://[::1" }), []string{"spec.function.execution.rootfs"}},
		{"sha256", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.SHA256 = "zz" }), []string{"spec.function.execution.sha256"}},
		{"command of a rootfs", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Command = []string{"x"} }), nil},
		{"arguments for no program", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Args = []string{"x"} }), []string{"spec.function.execution.args"}},
		{"rootfs over http", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Execution.Rootfs = "http://x/y" }), nil},
		{"sha256 of an image", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Execution.Rootfs, w.Spec.Function.Execution.Image = "", "nginx"
		}), []string{"spec.function.execution.sha256"}},
		{"function user and directory", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Execution.User, w.Spec.Function.Execution.WorkingDir = "Root!", "srv"
		}), []string{"spec.function.execution.user", "spec.function.execution.workingDir"}},
		{"function memory", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Resources.Limits = rikv1alpha1.ResourceList{"memory": resource.MustParse("127Mi")}
		}), []string{"spec.function.resources.limits[memory]"}},
		{"function processors", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Resources.Limits = rikv1alpha1.ResourceList{"cpu": resource.MustParse("32001m"), "memory": resource.MustParse("128Mi")}
		}), []string{"spec.function.resources.limits[cpu]"}},
		{"function of the largest size", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Resources = rikv1alpha1.Resources{
				Limits:   rikv1alpha1.ResourceList{"cpu": resource.MustParse("32"), "memory": resource.MustParse("1Ti")},
				Requests: rikv1alpha1.ResourceList{"cpu": resource.MustParse("100m"), "disk": resource.MustParse("10Gi")},
			}
		}), nil},
		{"function env and probes", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Function.Env = []rikv1alpha1.EnvVar{{Name: "a b"}}
			w.Spec.Function.EnvFrom = []rikv1alpha1.EnvFromSource{{}}
			w.Spec.Function.LivenessProbe = &rikv1alpha1.Probe{}
			w.Spec.Function.ReadinessProbe = &rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 8080}}
		}), []string{"spec.function.envFrom[0]", "spec.function.env[0].name", "spec.function.livenessProbe"}},
		{"function rate limits", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.RateLimits = &rikv1alpha1.RateLimits{DiskBytesPerSecond: 1 << 20, DiskOperationsPerSecond: 100, NetworkReceiveBytesPerSecond: 1, NetworkTransmitBytesPerSecond: 1}
		}), nil},
		{"negative rate limits", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.RateLimits = &rikv1alpha1.RateLimits{DiskBytesPerSecond: -1, DiskOperationsPerSecond: -1, NetworkReceiveBytesPerSecond: -1, NetworkTransmitBytesPerSecond: -1}
		}), []string{
			"spec.rateLimits.diskBytesPerSecond", "spec.rateLimits.diskOperationsPerSecond",
			"spec.rateLimits.networkReceiveBytesPerSecond", "spec.rateLimits.networkTransmitBytesPerSecond",
		}},
		{"function isolation", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Isolation = rikv1alpha1.IsolationMicroVM }), []string{"spec.isolation"}},
		{"app isolation", on(app, func(w *rikv1alpha1.Workload) { w.Spec.Isolation = rikv1alpha1.IsolationContainer }), []string{"spec.isolation"}},
		{"app rate limits", on(app, func(w *rikv1alpha1.Workload) { w.Spec.RateLimits = &rikv1alpha1.RateLimits{} }), []string{"spec.rateLimits"}},
		{"app pull secrets", on(app, func(w *rikv1alpha1.Workload) { w.Spec.ImagePullSecrets = []string{"a"} }), []string{"spec.imagePullSecrets"}},
		{"app with a version in its address", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "https://example.com/app-{version}.tar.gz" }), nil},
		{"app with a version on the node", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "/srv/app-{version}" }), nil},
		{"app without that version", on(app, func(w *rikv1alpha1.Workload) {
			w.Spec.App.Repo, w.Spec.App.Version = "https://example.com/{version}", ""
		}), []string{"spec.app.version"}},
		{"app without a command", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Command = nil }), []string{"spec.app.command"}},
		{"app in the host's network", on(app, func(w *rikv1alpha1.Workload) { w.Spec.HostNetwork = true }), nil},
		{"app in the host's network with a target", on(app, func(w *rikv1alpha1.Workload) {
			w.Spec.HostNetwork, w.Spec.App.Ports[0].TargetPort = true, 81
		}), []string{"spec.app.ports[0].targetPort"}},
		{"app env and probes", on(app, func(w *rikv1alpha1.Workload) {
			w.Spec.App.EnvFrom = []rikv1alpha1.EnvFromSource{{ConfigMap: "a", Secret: "b"}}
			w.Spec.App.StartupProbe = &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 0}}
		}), []string{"spec.app.envFrom[0]", "spec.app.startupProbe.http.port"}},
		{"exposure", on(function, func(w *rikv1alpha1.Workload) { w.Spec.Function.Exposure = &rikv1alpha1.Port{Port: 70000} }), []string{"spec.function.exposure.port", "spec.function.exposure.targetPort"}},
		{"pod fields on a function", on(function, func(w *rikv1alpha1.Workload) {
			w.Spec.Containers = []rikv1alpha1.Container{{Name: "a", Image: "b"}}
			w.Spec.HostNetwork, w.Spec.Runtime = true, "runc"
			w.Spec.Volumes = []rikv1alpha1.Volume{{Name: "x"}}
		}), []string{"spec.containers", "spec.hostNetwork", "spec.runtime", "spec.volumes"}},
		{"function on a pod", func(w *rikv1alpha1.Workload) { w.Spec.Function = &rikv1alpha1.Function{} }, []string{"spec.function"}},
		{"app on a pod", func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{} }, []string{"spec.app"}},
		{"app without app", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App = nil }), []string{"spec.app"}},
		{"app without repo", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo, w.Spec.App.Version = "", "" }), []string{"spec.app.repo"}},
		{"app over http", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "http://x/y-{version}" }), []string{"spec.app.repo"}},
		{"app of two places", on(app, func(w *rikv1alpha1.Workload) {
			w.Spec.App.Repo = "https://example.com/nginx-{version} | /usr/share/nginx/html"
		}), []string{"spec.app.repo"}},
		{"app of two places without spaces", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "/srv/a-{version}|/srv/b" }), []string{"spec.app.repo"}},
		{"app with another case", on(app, func(w *rikv1alpha1.Workload) {
			w.Spec.App.Repo, w.Spec.App.Version = "https://example.com/a-{Version}", ""
		}), []string{"spec.app.repo"}},
		{"app with double braces", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "https://example.com/a-{{version}}" }), []string{"spec.app.repo"}},
		{"app with another placeholder", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "https://example.com/a-{version}-{arch}" }), []string{"spec.app.repo"}},
		{"app with a version that nothing uses", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "https://example.com/nginx" }), []string{"spec.app.version"}},
		{"app in a directory with a version that nothing uses", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Repo = "/usr/share/nginx/html" }), []string{"spec.app.version"}},
		{"app version", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.Version = "../1" }), []string{"spec.app.version"}},
		{"app user", on(app, func(w *rikv1alpha1.Workload) { w.Spec.App.User = "Root!" }), []string{"spec.app.user"}},
	})
}

// TestMicroVM tests Pods in microVMs. Fields that only containers support are rejected with their
// paths.
func TestMicroVM(t *testing.T) {
	t.Parallel()
	on := func(change func(*rikv1alpha1.Workload)) func(*rikv1alpha1.Workload) {
		return func(w *rikv1alpha1.Workload) {
			w.Spec.Isolation = rikv1alpha1.IsolationMicroVM
			if change != nil {
				change(w)
			}
		}
	}
	cpu := func(amount string) rikv1alpha1.Resources {
		return rikv1alpha1.Resources{Limits: rikv1alpha1.ResourceList{"cpu": resource.MustParse(amount)}}
	}
	check(t, []workloadCase{
		{"smallest", on(nil), nil},
		{"said to be a container", func(w *rikv1alpha1.Workload) { w.Spec.Isolation = rikv1alpha1.IsolationContainer }, nil},
		{"unknown", func(w *rikv1alpha1.Workload) { w.Spec.Isolation = "jail" }, []string{"spec.isolation"}},
		{"rate limits", on(func(w *rikv1alpha1.Workload) { w.Spec.RateLimits = &rikv1alpha1.RateLimits{DiskBytesPerSecond: 1} }), nil},
		{"rate limits of a container", func(w *rikv1alpha1.Workload) { w.Spec.RateLimits = &rikv1alpha1.RateLimits{} }, []string{"spec.rateLimits"}},
		{"host network", on(func(w *rikv1alpha1.Workload) { w.Spec.HostNetwork = true }), []string{"spec.hostNetwork"}},
		{"runtime", on(func(w *rikv1alpha1.Workload) { w.Spec.Runtime = "runc" }), []string{"spec.runtime"}},
		{"host path", on(func(w *rikv1alpha1.Workload) {
			w.Spec.Volumes = []rikv1alpha1.Volume{
				{Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}, {Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: "/srv"}},
			}
		}), []string{"spec.volumes[1].hostPath"}},
		{"privileged", on(func(w *rikv1alpha1.Workload) {
			first(w).Security = &rikv1alpha1.Security{Privileged: true}
			w.Spec.InitContainers = []rikv1alpha1.Container{{Name: "i", Image: "x", Security: &rikv1alpha1.Security{Privileged: true}}}
		}), []string{"spec.containers[0].security.privileged", "spec.initContainers[0].security.privileged"}},
		{"capabilities in the guest", on(func(w *rikv1alpha1.Workload) {
			first(w).Security = &rikv1alpha1.Security{AddCapabilities: []string{"NET_ADMIN"}}
		}), nil},
		{"small containers", on(func(w *rikv1alpha1.Workload) {
			first(w).Resources.Limits = rikv1alpha1.ResourceList{"memory": resource.MustParse("16Mi")}
		}), nil},
		{"processors", on(func(w *rikv1alpha1.Workload) {
			first(w).Resources = cpu("20")
			w.Spec.Containers = append(w.Spec.Containers, rikv1alpha1.Container{Name: "b", Image: "x", Resources: cpu("13")})
			w.Spec.InitContainers = []rikv1alpha1.Container{{Name: "i", Image: "x", Resources: cpu("33")}}
		}), []string{"spec.containers", "spec.initContainers[0].resources.limits[cpu]"}},
	})
}

func TestPrivileges(t *testing.T) {
	t.Parallel()
	for _, tc := range []workloadCase{
		{"none", nil, nil},
		{"host network", func(w *rikv1alpha1.Workload) { w.Spec.HostNetwork = true }, []string{"spec.hostNetwork"}},
		{"host path", func(w *rikv1alpha1.Workload) {
			w.Spec.Volumes = []rikv1alpha1.Volume{{Name: "a"}, {Name: "h", HostPath: &rikv1alpha1.HostPathVolume{Path: "/"}}}
		}, []string{"spec.volumes[1].hostPath"}},
		{"privileged", func(w *rikv1alpha1.Workload) { first(w).Security = &rikv1alpha1.Security{Privileged: true} }, []string{"spec.containers[0].security.privileged"}},
		{"capability of an init container", func(w *rikv1alpha1.Workload) {
			w.Spec.InitContainers = []rikv1alpha1.Container{{Security: &rikv1alpha1.Security{AddCapabilities: []string{"SYS_ADMIN"}}}}
		}, []string{"spec.initContainers[0].security.addCapabilities"}},
		{"priority", func(w *rikv1alpha1.Workload) { w.Spec.Priority = 1 }, []string{"spec.priority"}},
		{"to stand back", func(w *rikv1alpha1.Workload) { w.Spec.Priority = -1 }, nil},
		{"only drops", func(w *rikv1alpha1.Workload) {
			first(w).Security = &rikv1alpha1.Security{DropCapabilities: []string{"ALL"}}
		}, nil},
		{"image of the node", func(w *rikv1alpha1.Workload) { first(w).Image = "oci:/srv/x" }, []string{"spec.containers[0].image"}},
		{"app", func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{} }, []string{"spec.app"}},
		{"app as root", func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{User: "00:100"} }, []string{"spec.app", "spec.app.user"}},
		{"app with a user name", func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{User: "nobody:root"} }, []string{"spec.app"}},
		{"function from a registry", func(w *rikv1alpha1.Workload) {
			w.Spec.Function = &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Image: "nginx", User: "root"}}
		}, nil},
		{"rootfs of the node", func(w *rikv1alpha1.Workload) {
			w.Spec.Function = &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: "/srv/x"}}
		}, []string{"spec.function.execution.rootfs"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, paths(validation.Privileges(field.NewPath("spec"), &defaulted(t, tc.change).Spec.InstanceTemplate))); diff != "" {
				t.Errorf("Privileges (-want +got):\n%s", diff)
			}
		})
	}
}

func rootfs(w *rikv1alpha1.Workload, url string) *rikv1alpha1.FunctionExecution {
	w.Spec.Kind, w.Spec.Containers = rikv1alpha1.KindFunction, nil
	w.Spec.Function = &rikv1alpha1.Function{Execution: rikv1alpha1.FunctionExecution{Rootfs: url}}
	return &w.Spec.Function.Execution
}

// TestAnAddressIsNamedAsGiven tests that an error about an App's address shows the original
// address with the placeholder of the version.
func TestAnAddressIsNamedAsGiven(t *testing.T) {
	t.Parallel()
	const given = "http://example.com/app-{version}.tar.gz"
	w := defaulted(t, func(w *rikv1alpha1.Workload) {
		w.Spec.Kind, w.Spec.Containers = rikv1alpha1.KindApp, nil
		w.Spec.App = &rikv1alpha1.App{Repo: given, Version: "1", Command: []string{"a"}}
	})
	errs := validation.Workload(w)
	if len(errs) != 1 || errs[0].Field != "spec.app.repo" || errs[0].BadValue != given {
		t.Errorf("Workload() = %v, want one error with %s", errs, given)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*rikv1alpha1.Workload)
		want   []string
	}{
		"none":     {nil, nil},
		"ports":    {func(w *rikv1alpha1.Workload) { first(w).Ports = []rikv1alpha1.Port{{Port: 80}} }, nil},
		"function": {func(w *rikv1alpha1.Workload) { rootfs(w, "https://example.com/a") }, nil},
		"rootfs over http": {func(w *rikv1alpha1.Workload) { rootfs(w, "http://example.com/a") }, []string{
			"spec.function.execution.rootfs: only nodes that allow http:// download this URL; use https://, or set sha256: otherwise anyone on the network path can change the root file system",
		}},
		"rootfs over http with its sum": {func(w *rikv1alpha1.Workload) {
			rootfs(w, "http://example.com/a").SHA256 = strings.Repeat("0", 64)
		}, []string{"spec.function.execution.rootfs: only nodes that allow http:// download this URL; use https://"}},
		"app": {func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{User: "1000"} }, nil},
		"app as root": {func(w *rikv1alpha1.Workload) { w.Spec.App = &rikv1alpha1.App{User: "root"} }, []string{
			"spec.app.user: the process runs as root on its node and is not restricted there",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, validation.Warnings(&defaulted(t, tc.change).Spec)); diff != "" {
				t.Errorf("Warnings (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSharedBounds tests that validation does not write to the shared limits, because requests are
// validated in parallel. Quantity.String caches its text in the Quantity.
func TestSharedBounds(t *testing.T) {
	t.Parallel()
	small := rikv1alpha1.ResourceList{"memory": resource.MustParse("1Mi"), "cpu": resource.MustParse("1m")}
	for _, change := range []func(*rikv1alpha1.Workload){
		func(w *rikv1alpha1.Workload) { function(w); w.Spec.Function.Resources.Limits = small },
		func(w *rikv1alpha1.Workload) { first(w).Resources.Limits = small },
	} {
		if len(validation.Workload(defaulted(t, change))) == 0 {
			t.Error("1Mi of memory was taken")
		}
	}
	for text, bound := range validation.Bounds {
		if !reflect.DeepEqual(resource.MustParse(text), *bound) {
			t.Errorf("the bound of %s was written to", text)
		}
	}
}

// TestAnOlderAddressStaysAllowed tests a workload that was stored before a rule about its App's
// address existed. Its other fields can still change.
func TestAnOlderAddressStaysAllowed(t *testing.T) {
	t.Parallel()
	old := defaulted(t, func(w *rikv1alpha1.Workload) {
		w.ResourceVersion = "1"
		w.Spec.Kind, w.Spec.Containers = rikv1alpha1.KindApp, nil
		w.Spec.App = &rikv1alpha1.App{Repo: "https://example.com/nginx", Version: "1", Command: []string{"a"}}
	})
	changed := old.DeepCopy()
	changed.Spec.Replicas = new(int32(3))
	if errs := validation.WorkloadUpdate(changed, old); len(errs) != 0 {
		t.Errorf("changing its replicas = %v", errs)
	}
	changed.Spec.App.Version = "2"
	if errs := validation.WorkloadUpdate(changed, old); len(errs) != 1 || errs[0].Field != "spec.app.version" {
		t.Errorf("changing its version = %v, want it refused", errs)
	}
}

package validation_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// on returns a case that changes the first container.
func on(name string, change func(*rikv1alpha1.Container), want ...string) workloadCase {
	return workloadCase{name, func(w *rikv1alpha1.Workload) { change(first(w)) }, want}
}

func TestContainer(t *testing.T) {
	t.Parallel()
	check(t, []workloadCase{
		on("no name", func(c *rikv1alpha1.Container) { c.Name = "" }, "spec.containers[0].name"),
		on("bad name", func(c *rikv1alpha1.Container) { c.Name = "../x" }, "spec.containers[0].name"),
		on("no image", func(c *rikv1alpha1.Container) { c.Image = "" }, "spec.containers[0].image"),
		on("bad image", func(c *rikv1alpha1.Container) { c.Image = "NGINX:::" }, "spec.containers[0].image"),
		on("long image", func(c *rikv1alpha1.Container) { c.Image = strings.Repeat("a", 5000) }, "spec.containers[0].image"),
		on("image path", func(c *rikv1alpha1.Container) { c.Image = "oci:/a/../../etc" }, "spec.containers[0].image"),
		on("pull policy", func(c *rikv1alpha1.Container) { c.ImagePullPolicy = "Maybe" }, "spec.containers[0].imagePullPolicy"),
		on("empty program", func(c *rikv1alpha1.Container) { c.Command = []string{""} }, "spec.containers[0].command[0]"),
		on("NUL in an argument", func(c *rikv1alpha1.Container) { c.Args = []string{"a", "b\x00c"} }, "spec.containers[0].args[1]"),
		on("not UTF-8", func(c *rikv1alpha1.Container) { c.Args = []string{"\xff"} }, "spec.containers[0].args[0]"),
		on("256 KiB of arguments", func(c *rikv1alpha1.Container) { c.Args = slices.Repeat([]string{strings.Repeat("x", 64<<10)}, 4) }, "spec.containers[0].args"),
		on("working directory", func(c *rikv1alpha1.Container) { c.WorkingDir = "srv" }, "spec.containers[0].workingDir"),
		on("working directory up", func(c *rikv1alpha1.Container) { c.WorkingDir = "/srv/../.." }, "spec.containers[0].workingDir"),
		on("user", func(c *rikv1alpha1.Container) { c.User = "a:b:c" }, "spec.containers[0].user"),
		on("user number", func(c *rikv1alpha1.Container) { c.User = "4294967295" }, "spec.containers[0].user"),
		on("user negative", func(c *rikv1alpha1.Container) { c.User = "-1" }, "spec.containers[0].user"),
		on("no group", func(c *rikv1alpha1.Container) { c.User = "1:" }, "spec.containers[0].user"),
		on("capability", func(c *rikv1alpha1.Container) {
			c.Security = &rikv1alpha1.Security{AddCapabilities: []string{"ALL", "CAP_NET_ADMIN", "KILL", "KILL"}, DropCapabilities: []string{"flying"}}
		}, "spec.containers[0].security.addCapabilities[0]", "spec.containers[0].security.addCapabilities[1]",
			"spec.containers[0].security.addCapabilities[3]", "spec.containers[0].security.dropCapabilities[0]"),
		on("privileged and drops", func(c *rikv1alpha1.Container) {
			c.Security = &rikv1alpha1.Security{Privileged: true, DropCapabilities: []string{"ALL"}}
		}, "spec.containers[0].security.dropCapabilities"),
		{"same name twice", func(w *rikv1alpha1.Workload) {
			w.Spec.Containers = append(w.Spec.Containers, *first(w))
			w.Spec.InitContainers = append(w.Spec.InitContainers, *first(w))
		}, []string{"spec.containers[1].name", "spec.initContainers[0].name"}},
		{"init container that serves", func(w *rikv1alpha1.Workload) {
			w.Spec.InitContainers = []rikv1alpha1.Container{{
				Name: "i", Image: "x", Ports: []rikv1alpha1.Port{{Port: 1}},
				ReadinessProbe: &rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{Port: 1}},
			}}
		}, []string{"spec.initContainers[0].ports", "spec.initContainers[0].readinessProbe"}},
	})
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := func(e ...rikv1alpha1.EnvVar) func(*rikv1alpha1.Container) {
		return func(c *rikv1alpha1.Container) { c.Env = e }
	}
	from := func(s *rikv1alpha1.EnvVarSource) func(*rikv1alpha1.Container) {
		return env(rikv1alpha1.EnvVar{Name: "A", ValueFrom: s})
	}
	check(t, []workloadCase{
		on("no name", env(rikv1alpha1.EnvVar{}), "spec.containers[0].env[0].name"),
		on("name with =", env(rikv1alpha1.EnvVar{Name: "A=B"}), "spec.containers[0].env[0].name"),
		on("twice", env(rikv1alpha1.EnvVar{Name: "A"}, rikv1alpha1.EnvVar{Name: "A"}), "spec.containers[0].env[1].name"),
		on("NUL", env(rikv1alpha1.EnvVar{Name: "A", Value: "\x00"}), "spec.containers[0].env[0].value"),
		on("too large", env(rikv1alpha1.EnvVar{Name: "A", Value: strings.Repeat("x", 120<<10)}, rikv1alpha1.EnvVar{Name: "B", Value: strings.Repeat("x", 120<<10)}, rikv1alpha1.EnvVar{Name: "C", Value: strings.Repeat("x", 20<<10)}), "spec.containers[0].env"),
		on("value and source", env(rikv1alpha1.EnvVar{Name: "A", Value: "x", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "metadata.name"}}), "spec.containers[0].env[0].valueFrom"),
		on("no source", from(&rikv1alpha1.EnvVarSource{}), "spec.containers[0].env[0].valueFrom"),
		on("two sources", from(&rikv1alpha1.EnvVarSource{FieldRef: "metadata.name", SecretKeyRef: &rikv1alpha1.KeyRef{Name: "a", Key: "b"}}), "spec.containers[0].env[0].valueFrom"),
		on("unknown field", from(&rikv1alpha1.EnvVarSource{FieldRef: "spec.secret"}), "spec.containers[0].env[0].valueFrom.fieldRef"),
		on("bad reference", from(&rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: "A/B", Key: "x/y"}}),
			"spec.containers[0].env[0].valueFrom.configMapKeyRef.key", "spec.containers[0].env[0].valueFrom.configMapKeyRef.name"),
		on("empty reference", from(&rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{}}),
			"spec.containers[0].env[0].valueFrom.secretKeyRef.key", "spec.containers[0].env[0].valueFrom.secretKeyRef.name"),
		on("too many", func(c *rikv1alpha1.Container) {
			for i := range 1025 {
				c.Env = append(c.Env, rikv1alpha1.EnvVar{Name: fmt.Sprint("A", i)})
			}
		}, "spec.containers[0].env"),
		on("all of both", func(c *rikv1alpha1.Container) {
			c.EnvFrom = []rikv1alpha1.EnvFromSource{{ConfigMap: "a", Secret: "b"}, {}, {Prefix: "=", Secret: "S_S"}}
		}, "spec.containers[0].envFrom[0]", "spec.containers[0].envFrom[1]", "spec.containers[0].envFrom[2].prefix", "spec.containers[0].envFrom[2].secret"),
	})
}

func TestPorts(t *testing.T) {
	t.Parallel()
	ports := func(p ...rikv1alpha1.Port) func(*rikv1alpha1.Container) {
		return func(c *rikv1alpha1.Container) { c.Ports = p }
	}
	check(t, []workloadCase{
		on("zero", ports(rikv1alpha1.Port{}), "spec.containers[0].ports[0].port", "spec.containers[0].ports[0].targetPort"),
		on("too high", ports(rikv1alpha1.Port{Port: 1, TargetPort: 65536}), "spec.containers[0].ports[0].targetPort"),
		on("negative", ports(rikv1alpha1.Port{Port: -1, TargetPort: 1}), "spec.containers[0].ports[0].port"),
		on("protocol", ports(rikv1alpha1.Port{Port: 1, Protocol: "tcp"}), "spec.containers[0].ports[0].protocol"),
		on("type", ports(rikv1alpha1.Port{Port: 1, Type: "NodePort"}), "spec.containers[0].ports[0].type"),
		on("name", ports(rikv1alpha1.Port{Port: 1, Name: "A_B"}), "spec.containers[0].ports[0].name"),
		on("twice", ports(rikv1alpha1.Port{Port: 1, Name: "a"}, rikv1alpha1.Port{Port: 1, Name: "a"}), "spec.containers[0].ports[1].name", "spec.containers[0].ports[1].port"),
		{"twice in two containers", func(w *rikv1alpha1.Workload) {
			first(w).Ports = []rikv1alpha1.Port{{Port: 80}}
			w.Spec.Containers = append(w.Spec.Containers, rikv1alpha1.Container{Name: "b", Image: "x", Ports: []rikv1alpha1.Port{{Port: 80}}})
		}, []string{"spec.containers[1].ports[0].port"}},
		{"host network translates nothing", func(w *rikv1alpha1.Workload) {
			w.Spec.HostNetwork = true
			first(w).Ports = []rikv1alpha1.Port{{Port: 80, TargetPort: 8080}}
		}, []string{"spec.containers[0].ports[0].targetPort"}},
	})
}

func TestResources(t *testing.T) {
	t.Parallel()
	requests := func(name rikv1alpha1.ResourceName, q string) func(*rikv1alpha1.Container) {
		return func(c *rikv1alpha1.Container) {
			c.Resources.Requests = rikv1alpha1.ResourceList{name: resource.MustParse(q)}
		}
	}
	limits := func(name rikv1alpha1.ResourceName, q string) func(*rikv1alpha1.Container) {
		return func(c *rikv1alpha1.Container) {
			c.Resources.Limits = rikv1alpha1.ResourceList{name: resource.MustParse(q)}
		}
	}
	check(t, []workloadCase{
		on("nothing asked", requests("cpu", "0")),
		on("negative", requests("cpu", "-1"), "spec.containers[0].resources.requests[cpu]"),
		on("absurd CPU", requests("cpu", "1M"), "spec.containers[0].resources.requests[cpu]"),
		on("absurd memory", requests("memory", "9000Pi"), "spec.containers[0].resources.requests[memory]"),
		on("beyond 64 bits", requests("memory", "1e30"), "spec.containers[0].resources.requests[memory]"),
		on("thousandth of a byte", requests("memory", "512m"), "spec.containers[0].resources.requests[memory]"),
		on("millionth of a core", requests("cpu", "1u"), "spec.containers[0].resources.requests[cpu]"),
		on("unknown", requests("gpu", "1"), "spec.containers[0].resources.requests[gpu]"),
		on("instances", requests("instances", "1"), "spec.containers[0].resources.requests[instances]"),
		on("disk limit is not enforced", limits("disk", "1Gi"), "spec.containers[0].resources.limits[disk]"),
		on("limit of none", limits("cpu", "0"), "spec.containers[0].resources.limits[cpu]"),
		on("limit too small", limits("memory", "1Ki"), "spec.containers[0].resources.limits[memory]"),
		on("request above limit", func(c *rikv1alpha1.Container) {
			requests("memory", "2Gi")(c)
			limits("memory", "1Gi")(c)
		}, "spec.containers[0].resources.requests[memory]"),
	})
}

func TestProbes(t *testing.T) {
	t.Parallel()
	live := func(p rikv1alpha1.Probe) func(*rikv1alpha1.Container) {
		return func(c *rikv1alpha1.Container) { c.LivenessProbe = &p }
	}
	const at = "spec.containers[0].livenessProbe"
	tcp := &rikv1alpha1.TCPProbe{Port: 1}
	check(t, []workloadCase{
		on("nothing asked", live(rikv1alpha1.Probe{}), at),
		on("two asked", live(rikv1alpha1.Probe{TCP: tcp, Exec: &rikv1alpha1.ExecProbe{Command: []string{"x"}}}), at),
		on("no command", live(rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{}}), at+".exec.command"),
		on("port", live(rikv1alpha1.Probe{TCP: &rikv1alpha1.TCPProbe{}}), at+".tcp.port"),
		on("HTTP", live(rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 0, Path: "x", Scheme: "FTP", Headers: map[string]string{"a b": "c", "D": "e\r\nf: g"}}}),
			at+".http.headers[D]", at+".http.headers[a b]", at+".http.path", at+".http.port", at+".http.scheme"),
		on("splitting path", live(rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 1, Path: "/ HTTP/1.1\r\nX: y"}}), at+".http.path"),
		on("numbers", live(rikv1alpha1.Probe{TCP: tcp, InitialDelaySeconds: -1, PeriodSeconds: -1, TimeoutSeconds: 1 << 30, SuccessThreshold: -1, FailureThreshold: -1}),
			at+".failureThreshold", at+".initialDelaySeconds", at+".periodSeconds", at+".successThreshold", at+".timeoutSeconds"),
		on("two successes of liveness", live(rikv1alpha1.Probe{TCP: tcp, SuccessThreshold: 2}), at+".successThreshold"),
		on("two successes of readiness", func(c *rikv1alpha1.Container) { c.ReadinessProbe = &rikv1alpha1.Probe{TCP: tcp, SuccessThreshold: 2} }),
	})
}

func TestVolumes(t *testing.T) {
	t.Parallel()
	volumes := func(name string, v []rikv1alpha1.Volume, want ...string) workloadCase {
		return workloadCase{name, func(w *rikv1alpha1.Workload) { w.Spec.Volumes = v }, want}
	}
	mounts := func(name string, m []rikv1alpha1.VolumeMount, want ...string) workloadCase {
		return workloadCase{name, func(w *rikv1alpha1.Workload) {
			w.Spec.Volumes = []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
			first(w).VolumeMounts = m
		}, want}
	}
	items := func(k ...rikv1alpha1.KeyToPath) []rikv1alpha1.Volume {
		return []rikv1alpha1.Volume{{Name: "v", Secret: &rikv1alpha1.ObjectVolume{Name: "s", Items: k}}}
	}
	check(t, []workloadCase{
		volumes("no source", []rikv1alpha1.Volume{{Name: "v"}}, "spec.volumes[0]"),
		volumes("two sources", []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}, HostPath: &rikv1alpha1.HostPathVolume{Path: "/x"}}}, "spec.volumes[0]"),
		volumes("bad name", []rikv1alpha1.Volume{{Name: "../v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}, "spec.volumes[0].name"),
		volumes("twice", []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}, {Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}, "spec.volumes[1].name"),
		volumes("limit on disk", []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{SizeLimitBytes: 1}}}, "spec.volumes[0].emptyDir.sizeLimitBytes"),
		volumes("negative limit", []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true, SizeLimitBytes: -1}}}, "spec.volumes[0].emptyDir.sizeLimitBytes"),
		volumes("host path up", []rikv1alpha1.Volume{{Name: "v", HostPath: &rikv1alpha1.HostPathVolume{Path: "/srv/../etc"}}}, "spec.volumes[0].hostPath.path"),
		volumes("host path relative", []rikv1alpha1.Volume{{Name: "v", HostPath: &rikv1alpha1.HostPathVolume{Path: "etc"}}}, "spec.volumes[0].hostPath.path"),
		volumes("mode", []rikv1alpha1.Volume{{Name: "v", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "c", Mode: ptr(int32(0o4777))}}}, "spec.volumes[0].configMap.mode"),
		volumes("item paths", items(rikv1alpha1.KeyToPath{Key: "a", Path: "../b"}, rikv1alpha1.KeyToPath{Key: "a", Path: "/b"}, rikv1alpha1.KeyToPath{Key: "a/b", Path: "b\n"}, rikv1alpha1.KeyToPath{Key: "a", Path: "."}),
			"spec.volumes[0].secret.items[0].path", "spec.volumes[0].secret.items[1].path", "spec.volumes[0].secret.items[2].key", "spec.volumes[0].secret.items[2].path", "spec.volumes[0].secret.items[3].path"),
		volumes("item twice", items(rikv1alpha1.KeyToPath{Key: "a", Path: "p"}, rikv1alpha1.KeyToPath{Key: "b", Path: "p"}), "spec.volumes[0].secret.items[1].path"),
		mounts("unknown volume", []rikv1alpha1.VolumeMount{{Name: "w", MountPath: "/x"}}, "spec.containers[0].volumeMounts[0].name"),
		mounts("same place", []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/x"}, {Name: "v", MountPath: "/x"}}, "spec.containers[0].volumeMounts[1].mountPath"),
		mounts("places", []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/"}, {Name: "v", MountPath: "/proc/sys"}, {Name: "v", MountPath: "/a/../b"}, {Name: "v", MountPath: "a"}, {Name: "v", MountPath: "/a//b"}},
			"spec.containers[0].volumeMounts[0].mountPath", "spec.containers[0].volumeMounts[1].mountPath", "spec.containers[0].volumeMounts[2].mountPath",
			"spec.containers[0].volumeMounts[3].mountPath", "spec.containers[0].volumeMounts[4].mountPath"),
		mounts("sub path", []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/x", SubPath: "../../etc"}}, "spec.containers[0].volumeMounts[0].subPath"),
	})
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	affinity := func(name string, a rikv1alpha1.Affinity, want ...string) workloadCase {
		return workloadCase{name, func(w *rikv1alpha1.Workload) { w.Spec.Affinity = &a }, want}
	}
	tolerations := func(name string, o rikv1alpha1.Toleration, want ...string) workloadCase {
		return workloadCase{name, func(w *rikv1alpha1.Workload) { w.Spec.Tolerations = []rikv1alpha1.Toleration{o} }, want}
	}
	requirement := func(key string, op metav1.LabelSelectorOperator, values ...string) []metav1.LabelSelectorRequirement {
		return []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}
	}
	check(t, []workloadCase{
		{"selector", func(w *rikv1alpha1.Workload) { w.Spec.NodeSelector = map[string]string{"a": "b c"} }, []string{"spec.nodeSelector"}},
		affinity("no expression", rikv1alpha1.Affinity{NodeRequired: []rikv1alpha1.NodeTerm{{}}}, "spec.affinity.nodeRequired[0].matchExpressions"),
		affinity("operator", rikv1alpha1.Affinity{NodeRequired: []rikv1alpha1.NodeTerm{{MatchExpressions: requirement("a", "Gt", "1")}}}, "spec.affinity.nodeRequired[0].matchExpressions[0].operator"),
		affinity("no values", rikv1alpha1.Affinity{NodeRequired: []rikv1alpha1.NodeTerm{{MatchExpressions: requirement("a", "In")}}}, "spec.affinity.nodeRequired[0].matchExpressions[0].values"),
		affinity("weight", rikv1alpha1.Affinity{NodePreferred: []rikv1alpha1.WeightedNodeTerm{{Weight: 101, Term: rikv1alpha1.NodeTerm{MatchExpressions: requirement("a", "Exists")}}}}, "spec.affinity.nodePreferred[0].weight"),
		affinity("topology", rikv1alpha1.Affinity{InstanceRequired: []rikv1alpha1.InstanceTerm{{}}, InstanceForbidden: []rikv1alpha1.InstanceTerm{{TopologyKey: "a b"}}},
			"spec.affinity.instanceForbidden[0].topologyKey", "spec.affinity.instanceRequired[0].topologyKey"),
		affinity("labels", rikv1alpha1.Affinity{InstanceRequired: []rikv1alpha1.InstanceTerm{{TopologyKey: "zone", Selector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "!"}}}}},
			"spec.affinity.instanceRequired[0].selector.matchLabels"),
		tolerations("operator", rikv1alpha1.Toleration{Key: "a", Operator: "Like"}, "spec.tolerations[0].operator"),
		tolerations("no key", rikv1alpha1.Toleration{Value: "x"}, "spec.tolerations[0].key"),
		tolerations("value of Exists", rikv1alpha1.Toleration{Key: "a", Operator: "Exists", Value: "b"}, "spec.tolerations[0].value"),
		tolerations("effect", rikv1alpha1.Toleration{Key: "a", Effect: "Explode"}, "spec.tolerations[0].effect"),
		{"spread", func(w *rikv1alpha1.Workload) {
			w.Spec.TopologySpread = []rikv1alpha1.TopologySpread{{}, {MaxSkew: 1, TopologyKey: "zone"}, {MaxSkew: 2, TopologyKey: "zone"}, {MaxSkew: 1, TopologyKey: "x", WhenUnsatisfiable: "Cry"}}
		}, []string{"spec.topologySpread[0].maxSkew", "spec.topologySpread[0].topologyKey", "spec.topologySpread[2]", "spec.topologySpread[3].whenUnsatisfiable"}},
	})
}

// TestWordsThatTheKernelRefuses tests the limit of execve: an argument or a variable must be
// shorter than 128 KiB.
func TestWordsThatTheKernelRefuses(t *testing.T) {
	t.Parallel()
	fits, tooLong := strings.Repeat("x", 128<<10-1), strings.Repeat("x", 128<<10)
	check(t, []workloadCase{
		on("longest argument", func(c *rikv1alpha1.Container) { c.Args = []string{fits} }),
		on("longer argument", func(c *rikv1alpha1.Container) { c.Args = []string{"a", tooLong} }, "spec.containers[0].args[1]"),
		on("longer command", func(c *rikv1alpha1.Container) { c.Command = []string{"a", tooLong} }, "spec.containers[0].command[1]"),
		on("longer probe", func(c *rikv1alpha1.Container) {
			c.LivenessProbe = &rikv1alpha1.Probe{Exec: &rikv1alpha1.ExecProbe{Command: []string{"a", tooLong}}}
		}, "spec.containers[0].livenessProbe.exec.command[1]"),
		on("longest variable", func(c *rikv1alpha1.Container) { c.Env = []rikv1alpha1.EnvVar{{Name: "A", Value: fits[2:]}} }),
		on("longer variable", func(c *rikv1alpha1.Container) { c.Env = []rikv1alpha1.EnvVar{{Name: "A", Value: fits[1:]}} }, "spec.containers[0].env[0].value"),
	})
}

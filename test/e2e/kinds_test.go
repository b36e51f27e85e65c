package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/testkit/privileged"
	"rik.dev/rik/internal/testkit/rikcluster"
)

// kindRows are the features of every kind of workload: one row each, in this order.
var kindRows = []struct {
	name  string
	check func(*testing.T, *kindCell)
	// skip names the columns without this feature, and the reason.
	skip map[string]string
}{
	{"runs, and ends with its code", endsWithCode, nil},
	{"restart policies: Always, OnFailure, Never", hasRestartPolicies, nil},
	{"environment, ConfigMap and Secret", hasEnvironment, nil},
	{"files from ConfigMap, Secret and emptyDir", hasFiles, map[string]string{
		"Function": "a Function has no volumes in the API: its files are in its root", "App": "an App has no volumes in the API: its files are in its repository",
	}},
	{"processor limit", hasProcessorLimit, nil},
	{"memory limit", hasMemoryLimit, nil},
	{"readiness gates ready, liveness restarts", hasProbes, nil},
	{"logs: tail, follow, previous", hasLogs, nil},
	{"exec: code, standard input, 127 and 126", hasExec, nil},
	{"TCP: from the node, each kind, a host port", hasTCP, nil},
	{"UDP: from the node, each kind, a host port", hasUDP, nil},
	{"names: others are found by theirs", hasNames, nil},
	{"port-forward", hasPortForward, nil},
	{"top: what VMMs count", isCounted, nil}, // since their start; a restored one starts from zero
	{"suspend and resume", canBeSuspended, nil},
	{"suspend to disk, where there is a VMM", canBeOnDisk, nil},
	{"the server is killed: the process lives on", survivesTheServer, nil},
	{"delete leaves nothing", leavesNothing, nil},
}

// kindColumn is a way to run the same program.
type kindColumn struct {
	name string
	bin  string // directory of the programs
	port int32  // of the node, the first of two
	// of returns the template that runs a container's program in this way.
	of func(rikv1alpha1.Container) rikv1alpha1.InstanceTemplate
}

// virtual reports whether it has its own kernel.
func (k *kindColumn) virtual() bool {
	t := k.of(rikv1alpha1.Container{})
	return t.Virtual()
}

func kindColumns(tools rikcluster.Tools, archives string) []kindColumn {
	return []kindColumn{
		{"container", "/bin/", 30100, func(c rikv1alpha1.Container) rikv1alpha1.InstanceTemplate {
			c.Image = tools.Image
			return rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindPod, Containers: []rikv1alpha1.Container{c}}
		}},
		{"microvm", "/bin/", 30110, func(c rikv1alpha1.Container) rikv1alpha1.InstanceTemplate {
			c.Image = tools.Image
			return rikv1alpha1.InstanceTemplate{
				Kind: rikv1alpha1.KindPod, Isolation: rikv1alpha1.IsolationMicroVM, Containers: []rikv1alpha1.Container{c},
			}
		}},
		{"Function", "/bin/", 30120, func(c rikv1alpha1.Container) rikv1alpha1.InstanceTemplate {
			f := &rikv1alpha1.Function{
				Execution: rikv1alpha1.FunctionExecution{Image: tools.Image, Command: c.Command},
				Env:       c.Env, EnvFrom: c.EnvFrom, Resources: c.Resources, LivenessProbe: c.LivenessProbe, ReadinessProbe: c.ReadinessProbe,
			}
			if len(c.Ports) > 0 {
				f.Exposure = &c.Ports[0]
			}
			return rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindFunction, Function: f}
		}},
		{"App", "./bin/", 30130, func(c rikv1alpha1.Container) rikv1alpha1.InstanceTemplate {
			return rikv1alpha1.InstanceTemplate{Kind: rikv1alpha1.KindApp, App: &rikv1alpha1.App{
				Repo: archives + "/{version}.tar.gz", Version: "tools", Command: c.Command, Env: c.Env, EnvFrom: c.EnvFrom,
				Resources: c.Resources, Ports: c.Ports, LivenessProbe: c.LivenessProbe, ReadinessProbe: c.ReadinessProbe,
			}}
		}},
	}
}

// kindTable is a cluster with the same workloads of every kind.
type kindTable struct {
	columns  []kindColumn
	ids      []string // UIDs of all instances that rows have seen
	pristine machineState
	lives    map[string]life // by column, from before the server was killed; nil: not killed yet
}

// kindCell is one column in one row.
type kindCell struct {
	*kindColumn
	table *kindTable
	c     *rikcluster.Cluster
}

// TestPrivilegedKinds runs the same program as a container, in microVMs and as a plain process,
// and expects the same of each. On a machine without KVM, microVMs run in software emulation.
func TestPrivilegedKinds(t *testing.T) {
	privileged.Require(t)
	if !rikcluster.Alone(t) {
		return
	}
	site := rikcluster.NewSite(t)
	c := rikcluster.Start(t, rikcluster.Options{MicroVMs: true, AgentArgs: []string{"--allow-fetch", "127.0.0.0/8"}})
	tools := c.Tools(site.Dir)
	table := &kindTable{columns: kindColumns(tools, site.URL), pristine: observe(t)}
	applyText(t, c, `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue}
---
apiVersion: v1
kind: Secret
metadata: {name: password}
stringData: {word: hunter2}
`)
	for i := range table.columns {
		deployKind(t, c, &table.columns[i])
	}
	for _, row := range kindRows {
		t.Run(row.name, func(t *testing.T) {
			for i := range table.columns {
				column := &table.columns[i]
				t.Run(column.name, func(t *testing.T) {
					if reason := row.skip[column.name]; reason != "" {
						t.Skip(reason)
					}
					row.check(t, &kindCell{column, table, c.In(t)})
				})
			}
		})
	}
	t.Run("a Function's root by URL", func(t *testing.T) { functionRoots(t, c.In(t), site.URL, tools) })
	t.Run("an App as in the paper", func(t *testing.T) { paperApp(t, c.In(t), tools) })
}

// The workloads of a column: one that serves, one that is probed (and sends requests to the
// others), and some that end in different ways.
const (
	serves    = "serves"
	probed    = "probed"
	done      = "done"
	once      = "once"
	again     = "again"
	retries   = "retries"
	memoryHog = "hungry"
)

// allOfAKind lists the workloads that exist until the end.
var allOfAKind = []string{serves, probed, done, once, memoryHog}

// probeSeconds is the interval of probes. With more probes, an emulated guest would spend half
// its time on them.
const probeSeconds = 5

// workload returns the name of a workload of this column.
func (k *kindColumn) workload(what string) string { return what + "-" + strings.ToLower(k.name) }

// introduction sets the PATH of a script, and saves its PID in a file. The PID stays the same
// when the process executes another program.
const introduction = `PATH=$PWD/bin:$PWD; export PATH; echo $$ > self; `

func deployKind(t *testing.T, c *rikcluster.Cluster, k *kindColumn) {
	t.Helper()
	const listens = `touch alive; echo env $COLOR $WORD $NAME $MORE_word; exec hello -listen :8080 -udp :5353`
	env := []rikv1alpha1.EnvVar{
		{Name: "COLOR", ValueFrom: &rikv1alpha1.EnvVarSource{ConfigMapKeyRef: &rikv1alpha1.KeyRef{Name: "settings", Key: "color"}}},
		{Name: "WORD", ValueFrom: &rikv1alpha1.EnvVarSource{SecretKeyRef: &rikv1alpha1.KeyRef{Name: "password", Key: "word"}}},
		{Name: "NAME", ValueFrom: &rikv1alpha1.EnvVarSource{FieldRef: "metadata.name"}},
	}
	// Workloads that end at once come first, because a machine boots faster while fewer others
	// run.
	k.deploy(t, c, done, "exit 0", rikv1alpha1.RestartOnFailure, nil)
	k.deploy(t, c, once, "echo why; exit 3", rikv1alpha1.RestartNever, nil)
	k.deploy(t, c, memoryHog, "tail /dev/zero", rikv1alpha1.RestartNever, nil)
	k.deploy(t, c, serves, listens, "", func(o *rikv1alpha1.Container) {
		o.Env, o.EnvFrom = env, []rikv1alpha1.EnvFromSource{{Prefix: "MORE_", Secret: "password"}}
		o.Ports = []rikv1alpha1.Port{{Port: k.port, TargetPort: 8080, Type: rikv1alpha1.PortNodePort}}
		o.Resources.Limits[rikv1alpha1.ResourceCPU] = resource.MustParse("1")
		o.ReadinessProbe = &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 8080}, PeriodSeconds: probeSeconds, TimeoutSeconds: 10}
	})
	cat := func(file string) *rikv1alpha1.Probe {
		return &rikv1alpha1.Probe{
			Exec: &rikv1alpha1.ExecProbe{Command: []string{k.bin + "cat", file}}, PeriodSeconds: probeSeconds, FailureThreshold: 2, TimeoutSeconds: 20,
		}
	}
	k.deploy(t, c, probed, listens, "", func(o *rikv1alpha1.Container) {
		o.Ports = []rikv1alpha1.Port{{Port: k.port + 1, TargetPort: 5353, Protocol: rikv1alpha1.ProtocolUDP, Type: rikv1alpha1.PortNodePort}}
		o.ReadinessProbe, o.LivenessProbe = cat("ready"), cat("alive")
	})
}

// deploy creates one workload of the column and one instance of it.
func (k *kindColumn) deploy(t *testing.T, c *rikcluster.Cluster, what, script string, policy rikv1alpha1.RestartPolicy, change func(*rikv1alpha1.Container)) {
	t.Helper()
	container := rikv1alpha1.Container{
		Name: "main", Command: []string{k.bin + "sh", "-c", introduction + script},
		Resources: rikv1alpha1.Resources{
			Requests: rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("10m")},
			Limits:   rikv1alpha1.ResourceList{rikv1alpha1.ResourceMemory: resource.MustParse("128Mi")},
		},
	}
	if change != nil {
		change(&container)
	}
	template := k.of(container)
	template.RestartPolicy = policy
	grace := int64(5)
	template.TerminationGracePeriodSeconds = &grace
	k.addFiles(&template, what)
	manifest, err := json.Marshal(map[string]any{
		"apiVersion": rikv1alpha1.SchemeGroupVersion.String(), "kind": "Workload",
		"metadata": map[string]any{"name": k.workload(what)}, "spec": template,
	})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, c, string(manifest), k.workload(what), 1)
	if !k.virtual() {
		return
	}
	// Boot one after the other. If many guests are emulated at the same time on few cores, a
	// guest's kernel misses so many ticks that it disables its timer, and may hang forever.
	eventuallyInstance(c, k.workload(what), "past its boot", func(in *rikv1alpha1.Instance) bool {
		if len(in.Status.Containers) != 1 {
			return false
		}
		status := in.Status.Containers[0]
		return status.State != rikv1alpha1.ContainerWaiting || status.RestartCount > 0
	})
}

// addFiles mounts volumes into the probed workload, if the kind supports volumes.
func (k *kindColumn) addFiles(t *rikv1alpha1.InstanceTemplate, what string) {
	if what != probed || len(t.Containers) == 0 {
		return
	}
	t.Volumes = []rikv1alpha1.Volume{
		{Name: "settings", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "settings"}},
		{Name: "password", Secret: &rikv1alpha1.ObjectVolume{Name: "password"}},
		{Name: "work", EmptyDir: &rikv1alpha1.EmptyDirVolume{}},
	}
	t.Containers[0].VolumeMounts = []rikv1alpha1.VolumeMount{
		{Name: "settings", MountPath: "/etc/settings"}, {Name: "password", MountPath: "/etc/password"}, {Name: "work", MountPath: "/work"},
	}
}

// the waits until the only instance of one of the column's workloads fits, and returns it.
func (k *kindCell) the(workload, what string, fits func(*rikv1alpha1.Instance) bool) rikv1alpha1.Instance {
	in := eventuallyInstance(k.c, k.workload(workload), what, fits)
	if uid := string(in.UID); !slices.Contains(k.table.ids, uid) {
		k.table.ids = append(k.table.ids, uid)
	}
	return in
}

// running returns the running instance of one of the column's workloads that serve or are
// probed.
func (k *kindCell) running(workload string) rikv1alpha1.Instance {
	return k.the(workload, "running with an address", func(in *rikv1alpha1.Instance) bool {
		return in.Status.Phase == rikv1alpha1.InstanceRunning && in.Status.Address != "" && (workload != serves || in.Status.Ready)
	})
}

// exec runs one of the column's programs in an instance.
func (k *kindCell) exec(in rikv1alpha1.Instance, program string, args ...string) rikcluster.Result {
	return k.c.TryRikctl(append([]string{"exec", in.Name, "--", k.bin + program}, args...)...)
}

// eachAsks runs a program in an instance of every kind until its output has the wanted text.
func (k *kindCell) eachAsks(want, program string, args ...string) {
	for i := range k.table.columns {
		client := kindCell{&k.table.columns[i], k.table, k.c}
		asks := client.running(probed)
		k.c.Eventually(func() error {
			if out := client.exec(asks, program, args...); out.Err != nil || !strings.Contains(out.Stdout, want) {
				return fmt.Errorf("%s %v in %s: %q (%w), want %q", program, args, asks.Name, out.Stdout, out.Err, want)
			}
			return nil
		})
	}
}

// lines returns the log of an instance.
func (k *kindCell) lines(in rikv1alpha1.Instance) []string {
	return strings.Split(strings.TrimSuffix(k.c.Rikctl("logs", in.Name), "\n"), "\n")
}

// processOf identifies the first process of an instance uniquely: its PID and the tick of its
// start.
func (k *kindCell) processOf(in rikv1alpha1.Instance) (name string, err error) {
	out := k.exec(in, "sh", "-c", introduction[:strings.Index(introduction, "echo")]+`p=$(cat self); echo $p since $(cut -d ' ' -f 22 /proc/$p/stat)`)
	return strings.TrimSpace(out.Stdout), out.Err
}

// machineState is what instances add to a machine in addition to files and processes.
type machineState map[string]bool

// missing returns the entries of m that there lacks.
func (m machineState) missing(there machineState) []string {
	var found []string
	for _, line := range slices.Sorted(maps.Keys(m)) {
		if !there[line] {
			found = append(found, line)
		}
	}
	return found
}

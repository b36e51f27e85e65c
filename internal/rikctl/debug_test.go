package rikctl

import (
	"archive/tar"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/scheme"
	"rik.dev/rik/internal/testkit/kcptest"
)

// debugCanary is in every place of the cluster where a secret can be.
const debugCanary = "c4n4ry5ecretv4lue"

// bundle writes a bundle and returns its files by their names. Nothing of the machine that runs the
// test is in it.
func (m machine) bundle(t *testing.T, args ...string) map[string]string {
	t.Helper()
	file := filepath.Join(m.home, "bundle.tar.gz")
	m.run(t, append([]string{"debug", "bundle", "--local=false", "-f", file}, args...)...).check(t, clierror.ExitOK, file, " files, ")
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the bundle: %v, %v; want that only its owner can read it", info, err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(header.Name, "/")
		files[name] = string(content)
	}
}

// requireNoCanary fails for each file with the canary, or with a word, in any form.
func requireNoCanary(t *testing.T, files map[string]string, words ...string) {
	t.Helper()
	for _, word := range append(words, debugCanary) {
		for name, content := range files {
			for _, form := range []string{word, base64.StdEncoding.EncodeToString([]byte(word)), base64.RawStdEncoding.EncodeToString([]byte(word))} {
				if i := strings.Index(content, form); i >= 0 {
					t.Errorf("%s has a secret: %q", name, content[max(0, i-60):min(len(content), i+len(form)+20)])
				}
			}
		}
	}
}

const debugManifest = `
apiVersion: v1
kind: Secret
metadata: {name: db, annotations: {example.org/note: "CANARY01"}}
stringData: {user: me, password: "CANARY02", plain: "CANARY03"}
---
apiVersion: v1
kind: Secret
metadata: {name: pull}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths":{"r.example":{"username":"u","password":"CANARY04","auth":"CANARY05"}}}'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data:
  db-password: CANARY06
  level: debug
  app.properties: "port=80\napi.token=CANARY07\nurl=https://u:CANARY08@h/\n"
  kubeconfig: "users: [{name: x, user: {token: CANARY09}}]"
---
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: web, annotations: {example.org/deploy-key: "CANARY10", note: "CANARY11"}}
spec:
  imagePullSecrets: [pull]
  containers:
  - name: main
    image: docker://registry.example/web:1
    command: [/server, --password=CANARY12, --token, CANARY13]
    args: [CANARY14, "-pCANARY15", "postgres://u:CANARY16@db/x"]
    env:
    - {name: LEVEL, value: CANARY17}
    - {name: PASSWORD, value: CANARY18}
    - {name: FROM, valueFrom: {secretKeyRef: {name: db, key: password}}}
    livenessProbe: {exec: {command: [sh, -c, "curl -H 'Authorization: Bearer CANARY19' http://localhost"]}}
---
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata: {name: fun}
spec:
  kind: Function
  function:
    execution: {rootfs: "https://files.example/fun.img?sig=CANARY21"}
    env: [{name: X, value: CANARY22}]
`

// TestServerDebugBundle puts a canary in each place of a cluster where a secret can be, and searches the
// bundle for it. The bundle is useful nevertheless.
func TestServerDebugBundle(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.do(t, "apply", "-f", s.file(t, strings.ReplaceAll(debugManifest, "CANARY", debugCanary))).check(t, clierror.ExitOK)
	node := s.node(t)
	r := s.do(t, "create", "instance", "-q", "-w", "web")
	r.check(t, clierror.ExitOK)
	instance := strings.TrimSpace(r.out)
	i := &rikv1alpha1.Instance{}
	if err := s.c.Get(t.Context(), s.key(instance), i); err != nil {
		t.Fatal(err)
	}
	i.Spec.NodeName = node
	if err := s.c.Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	i.Status.Phase = rikv1alpha1.InstanceFailed
	// A program printed the value of a Secret, without a word that says so.
	i.Status.Message = "panic: cannot use " + debugCanary + "03 as a number; joining with rik1." + strings.Repeat("ab", 32) + "." + debugCanary + "20"
	if err := s.c.Status().Update(t.Context(), i); err != nil {
		t.Fatal(err)
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: s.namespace, Name: "web.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Instance", Namespace: s.namespace, Name: instance},
		Reason:         "PullFailed", Type: corev1.EventTypeWarning, Message: "pulling https://u:" + debugCanary + "30@registry.example/v2/: 401",
	}
	if err := s.c.Create(t.Context(), event); err != nil {
		t.Fatal(err)
	}
	files := s.bundle(t)
	config, err := os.ReadFile(s.env["RIKCONFIG"])
	if err != nil {
		t.Fatal(err)
	}
	var own []string
	for line := range strings.Lines(string(config)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name == "clientKey" && len(value) > 40 {
			own = append(own, value[:40])
		}
	}
	if len(own) == 0 {
		t.Error("the configuration of rikctl has no key, so its absence proves nothing")
	}
	requireNoCanary(t, files, own...)
	for name, words := range map[string][]string{
		"index.txt":                               {"objects/instances.rik.dev.yaml", "server/metrics.txt"},
		"rikctl.txt":                              {"rikctl v"},
		"summary.txt":                             {node, fmt.Sprintf("%s/%s is Failed on node %q", s.namespace, instance, node)},
		"objects/secrets.yaml":                    {"name: db", "password: REDACTED"},
		"objects/configmaps.yaml":                 {"name: settings", "level: debug", "port=80", "db-password: REDACTED"},
		"objects/workloads.rik.dev.yaml":          {"docker://registry.example/web:1", "name: LEVEL", "--password=REDACTED", "key: password", "files.example/fun.img"},
		"objects/instances.rik.dev.yaml":          {instance, "phase: Failed", "panic: cannot use REDACTED as a number"},
		"objects/nodes.rik.dev.yaml":              {node},
		"objects/events.yaml":                     {"https://REDACTED@registry.example/v2/: 401", "PullFailed"},
		"objects/workloadrevisions.rik.dev.yaml":  {"name: LEVEL"},
		"objects/leases.coordination.k8s.io.yaml": {""},
		"server/version.json":                     {"gitVersion"},
		"server/healthz.txt":                      {"ok"},
		"server/metrics.txt":                      {"# HELP"},
	} {
		content, found := files[name]
		if !found {
			t.Errorf("the bundle has no %s", name)
		}
		for _, word := range words {
			if !strings.Contains(content, word) {
				t.Errorf("%s lacks %q", name, word)
			}
		}
	}
}

// TestServerDebugBundleOfAKCP has the kubeconfig of a cluster, which a kcp stores in its objects.
func TestServerDebugBundleOfAKCP(t *testing.T) {
	t.Parallel()
	upstream := sharedKCP(t)
	c, err := client.New(kcptest.LoopbackConfig(upstream), client.Options{Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	cluster := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "debug"}}
	cluster.Spec.KubeConfig = `apiVersion: v1
kind: Config
current-context: x
contexts: [{name: x, context: {cluster: x, user: x}}]
clusters: [{name: x, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: x, user: {token: ` + debugCanary + `}}]
`
	if err := c.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(t.Context(), cluster) })
	m := newMachine(t)
	m.env["RIKCONFIG"] = filepath.Join(upstream.DataDir, "config.yaml")
	files := m.bundle(t)
	requireNoCanary(t, files)
	if content := files["objects/clusters.workload.kcp.dev.yaml"]; !strings.Contains(content, "name: debug") || !strings.Contains(content, "kubeconfig: REDACTED") {
		t.Errorf("the clusters:\n%s", content)
	}
}

// TestDebugBundleWithoutAServer makes sure that a report can be made about a server that does not run.
func TestDebugBundleWithoutAServer(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	files := m.bundle(t)
	if index := files["index.txt"]; !strings.Contains(index, "server") || !strings.Contains(index, "missing: no configuration names a cluster") {
		t.Errorf("the index:\n%s", index)
	}
	m.run(t, "debug", "bundle", "--since", "0s").check(t, clierror.ExitUsage, "too short")
	m.run(t, "debug", "bundle", "x").check(t, clierror.ExitUsage)
	m.run(t, "debug", "bundles").check(t, clierror.ExitUsage, "did you mean bundle")
	m.run(t, "debug", "bundle", "-f", filepath.Join(m.home, "none", "x")).check(t, clierror.ExitError, "writing the bundle")
}

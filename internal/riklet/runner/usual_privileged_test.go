package runner

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/oci"
)

// The tests in this file check behavior that users know from kubelet and from container engines.

// A probe follows a redirect within its instance. The target determines the result.
func TestPrivilegedProbesFollowRedirects(t *testing.T) {
	t.Parallel()
	n := newNetworkNode(t)
	n.start()
	web := sh("web", `mkdir -p /tmp/www/cgi-bin
printf '#!/bin/sh\nprintf "Status: 302 Found\\r\\nLocation: /behind\\r\\n\\r\\n"\n' > /tmp/www/cgi-bin/front
chmod +x /tmp/www/cgi-bin/front; exec httpd -f -p 80 -h /tmp/www`)
	web.ReadinessProbe = everySecond(rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Path: "/cgi-bin/front", Port: 80}})
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, web))
	n.await("u1", "not ready for what is behind the redirect", func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) == 1 && strings.Contains(s.Containers[0].Message, "HTTP 404")
	})
	if _, err := n.driver.Exec(t.Context(), "u1", "", instance.ExecOptions{Command: []string{"touch", "/tmp/www/behind"}}); err != nil {
		t.Fatal(err)
	}
	n.await("u1", "ready", func(s rikv1alpha1.InstanceStatus) bool { return s.Ready })
	n.stop("u1", 0)
}

// TERM is set for programs on a terminal, unless the container sets it.
func TestPrivilegedTerminalsHaveATERM(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		newNode func(*testing.T) *node
		make    func(uid string, policy rikv1alpha1.RestartPolicy, containers ...rikv1alpha1.Container) instance.Instance
	}{
		"a container": {func(t *testing.T) *node { return newNode(t) }, podOf},
		"a microVM":   {newVMNode, microVM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := tc.newNode(t)
			n.start()
			own := sh("own", forever)
			own.Env = []rikv1alpha1.EnvVar{{Name: "TERM", Value: "dumb"}}
			n.ensure(tc.make("u1", rikv1alpha1.RestartAlways, sh("main", forever), own))
			n.awaitPhase("u1", rikv1alpha1.InstanceRunning)
			for _, tc := range []struct {
				container string
				tty       bool
				want      string
			}{{"main", true, "[xterm]"}, {"main", false, "[]"}, {"own", true, "[dumb]"}} {
				var out bytes.Buffer
				code, err := n.driver.Exec(t.Context(), "u1", tc.container, instance.ExecOptions{Command: []string{"/bin/sh", "-c", "echo [$TERM]"}, TTY: tc.tty, Stdout: &out})
				if got := strings.TrimSpace(out.String()); code != 0 || err != nil || got != tc.want {
					t.Errorf("%s, terminal %t: %d, %v, %q, want %q", tc.container, tc.tty, code, err, got, tc.want)
				}
			}
			n.stop("u1", time.Second)
		})
	}
}

// An instance in the node's network has the node's names.
func TestPrivilegedHostNetworkUsesTheNodesResolver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	in := podOf("u1", rikv1alpha1.RestartNever, sh("main", "hostname; echo $HOSTNAME; cat /etc/hostname /etc/hosts"))
	in.Template.HostNetwork = true
	n.ensure(in)
	named := podOf("u2", rikv1alpha1.RestartNever, sh("main", "hostname"))
	named.Template.HostNetwork, named.Template.Hostname = true, "asked-for"
	n.ensure(named)
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	n.awaitPhase("u2", rikv1alpha1.InstanceCompleted)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := n.log("u1", "main"), strings.Repeat(host+"\n", 3)+string(hosts); strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("the instance sees %q, want %q", got, want)
	}
	if got := n.log("u2", "main"); got != "asked-for\n" {
		t.Errorf("its hostname is %q", got)
	}
}

// A privileged container has the devices of the node, and other containers do not.
func TestPrivilegedDevicesOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	devices, err := oci.Devices("/dev")
	if err != nil || len(devices) == 0 {
		t.Skipf("the node has no devices: %v", err)
	}
	var script strings.Builder
	for _, d := range devices {
		script.WriteString("test -" + d.Type + " '" + d.Path + "' && echo '" + d.Path + "'; ")
	}
	privileged, plain := sh("main", script.String()+"true"), sh("main", script.String()+"true")
	privileged.Security = &rikv1alpha1.Security{Privileged: true}
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, privileged))
	n.ensure(podOf("u2", rikv1alpha1.RestartNever, plain))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	n.awaitPhase("u2", rikv1alpha1.InstanceCompleted)
	if got := strings.Count(n.log("u1", "main"), "\n"); got != len(devices) {
		t.Errorf("the privileged container has %d of %d devices:\n%s", got, len(devices), n.log("u1", "main"))
	}
	if got := n.log("u2", "main"); got != "" {
		t.Errorf("another container has devices of the node: %q", got)
	}
}

// An image for 386 runs on an amd64 node.
func TestPrivilegedProgramsOf386Run(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the processor is no amd64")
	}
	n := newNode(t)
	source, program := filepath.Join(n.dir, "main.go"), filepath.Join(n.dir, "program")
	text := "package main\nimport (\"fmt\"; \"net\"; \"runtime\")\nfunc main() { l, err := net.Listen(\"tcp\", \"127.0.0.1:0\"); fmt.Println(runtime.GOARCH, l != nil, err) }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", program, source)
	build.Env = append(os.Environ(), "GOARCH=386", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building a program of 386: %v: %s", err, out)
	}
	layout := filepath.Join(n.dir, "layout")
	if _, err := ociimage.Write(layout, "v1", ociimage.Spec{
		Files: map[string]ociimage.File{"program": {Source: program}}, Entrypoint: []string{"/program"}, Architecture: "386",
	}); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartNever, rikv1alpha1.Container{Name: "main", Image: "oci:" + layout + ":v1"}))
	n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
	if got := n.log("u1", "main"); got != "386 true <nil>\n" {
		t.Errorf("the program printed %q", got)
	}
}

// A volume at /etc shows its own files and those that the node mounts there.
func TestPrivilegedAVolumeAtEtcKeepsTheNodesFiles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		newNode func(*testing.T) *node
		make    func(uid string, policy rikv1alpha1.RestartPolicy, containers ...rikv1alpha1.Container) instance.Instance
	}{
		"a container": {func(t *testing.T) *node { return newNode(t) }, podOf},
		"a microVM":   {newVMNode, microVM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := tc.newNode(t)
			n.objects.setConfigMap("cm", map[string][]byte{"key": []byte("value")})
			n.start()
			const look = "cd /etc; for f in hosts hostname resolv.conf key; do [ -s $f ] && echo $f; done; true"
			writable, readOnly := sh("writable", look), sh("read-only", look)
			writable.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "cm", MountPath: "/etc/key", SubPath: "key"}, {Name: "e", MountPath: "/etc"}}
			readOnly.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "cm", MountPath: "/etc"}}
			in := tc.make("u1", rikv1alpha1.RestartNever, writable, readOnly)
			in.Template.Volumes = []rikv1alpha1.Volume{
				{Name: "e", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}, {Name: "cm", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "cm"}},
			}
			n.ensure(in)
			n.awaitPhase("u1", rikv1alpha1.InstanceCompleted)
			for container, want := range map[string]string{"writable": "hosts\nhostname\nresolv.conf\nkey\n", "read-only": "key\n"} {
				if got := n.log("u1", container); got != want {
					t.Errorf("%s: /etc has %q, want %q", container, got, want)
				}
			}
		})
	}
}

// An image with an invalid stop signal is not started, because the signal that its program
// expects is not known.
func TestPrivilegedAnUnknownStopSignalIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.StopSignal = "SIGNONSENSE"
	layout := filepath.Join(n.dir, "layout")
	if _, err := ociimage.Write(layout, "v1", spec); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.ensure(podOf("u1", rikv1alpha1.RestartAlways, rikv1alpha1.Container{Name: "main", Image: "oci:" + layout + ":v1", Command: []string{"sleep", "1000"}}))
	if s := n.awaitPhase("u1", rikv1alpha1.InstanceFailed); s.Reason != reasonInvalidImage || !strings.Contains(s.Message, "STOPSIGNAL") || !strings.Contains(s.Message, "SIGNONSENSE") {
		t.Errorf("status = %+v", s)
	}
}

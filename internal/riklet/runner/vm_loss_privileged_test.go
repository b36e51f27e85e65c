package runner

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// lossNode runs one microVM whose init container and main container each write a line into a
// volume on disk at every start. If memory is true, it also has a volume in memory.
func lossNode(t *testing.T, uid string, memory bool) *node {
	n := newVMNode(t)
	n.start()
	prepare := sh("prepare", "echo init >> /data/lines; echo word > /data/word; sync")
	main := sh("main", "cat /data/word >> /data/lines; sync; echo written; "+forever)
	in := microVM(uid, rikv1alpha1.RestartAlways, main)
	in.Template.InitContainers = []rikv1alpha1.Container{prepare}
	in.Template.Volumes = []rikv1alpha1.Volume{{Name: "data", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}
	if memory {
		in.Template.Volumes = append(in.Template.Volumes, rikv1alpha1.Volume{Name: "memory", EmptyDir: &rikv1alpha1.EmptyDirVolume{InMemory: true}})
	}
	for _, c := range []*rikv1alpha1.Container{&in.Template.InitContainers[0], &in.Template.Containers[0]} {
		c.VolumeMounts = []rikv1alpha1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
	n.ensure(in)
	n.awaitRun(uid, 0)
	return n
}

// awaitRun waits until the main container has restarted the given number of times and has written
// its line.
func (n *node) awaitRun(uid string, restarts int32) rikv1alpha1.InstanceStatus {
	n.Helper()
	s := n.await(uid, fmt.Sprintf("running after %d restarts", restarts), func(s rikv1alpha1.InstanceStatus) bool {
		return len(s.Containers) > 0 && s.Containers[0].RestartCount == restarts && s.Containers[0].State == rikv1alpha1.ContainerRunning
	})
	eventually(n, func() string {
		if log := n.log(uid, "main"); !strings.Contains(log, "written\n") {
			return "its log: " + log
		}
		return ""
	})
	return s
}

func (n *node) linesOf(uid string) string {
	n.Helper()
	var out bytes.Buffer
	if code, err := n.driver.Exec(n.Context(), uid, "main", instance.ExecOptions{Command: []string{"cat", "/data/lines"}, Stdout: &out}); code != 0 || err != nil {
		n.Fatalf("reading the lines = %d, %v", code, err)
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

// crash kills an instance's VMM and supervisor while no riklet runs, calls meanwhile, and starts
// a riklet.
func (n *node) crash(uid string, meanwhile func(disk, note string) error) {
	n.Helper()
	pid, ok := n.driver.machine(uid).engineRunning().Namespaces()
	if !ok {
		n.Fatal("there is no supervisor")
	}
	disk, note := n.scratch(uid), filepath.Join(n.cfg.Root, "pods", uid, "scratch.json")
	pids := append(n.vmms(uid), pid)
	n.end()
	for _, p := range pids {
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil {
			n.Fatal(err)
		}
	}
	if err := meanwhile(disk, note); err != nil {
		n.Fatal(err)
	}
	n.start()
}

func (n *node) killSupervisor(uid string) {
	n.Helper()
	pid, ok := n.driver.machine(uid).engineRunning().Namespaces()
	if !ok {
		n.Fatal("there is no supervisor")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		n.Fatal(err)
	}
}

// However a microVM loses its sandbox, its volumes on disk stay, and its init containers do not
// run again.
func TestPrivilegedVMKeepsItsVolumes(t *testing.T) {
	t.Parallel()
	const uid = "u1"
	n := lossNode(t, uid, false)
	want := "init word"
	for i, way := range []struct {
		name, reason string
		lose         func()
	}{
		{"the VMM is killed", reasonVMEnded, func() { n.killVMM(uid) }},
		{"the supervisor is killed", reasonSupervisorLost, func() { n.killSupervisor(uid) }},
		{"both are killed while no agent runs", reasonSupervisorLost, func() {
			n.crash(uid, func(string, string) error { return nil })
		}},
		{"the snapshot is cut short", reasonSnapshotLost, func() {
			n.suspend(instance.OnDisk)
			if err := os.Truncate(filepath.Join(n.snapshot(uid), "memory"), 4096); err != nil {
				n.Fatal(err)
			}
			if err := n.driver.Resume(n.Context(), uid); !errors.Is(err, instance.ErrLost) {
				n.Errorf("Resume() = %v, want ErrLost", err)
			}
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			n.within(t, func() {
				way.lose()
				want += " word"
				s := n.awaitRun(uid, int32(i+1))
				if got := n.linesOf(uid); got != want {
					t.Errorf("the volume has %q, want %q", got, want)
				}
				if last := s.Containers[0].LastState; last == nil || last.Reason != way.reason {
					t.Errorf("the last run ended with %+v, want %s", last, way.reason)
				}
				if s.InitContainers[0].RestartCount != 0 {
					t.Errorf("the init container ran again: %+v", s.InitContainers[0])
				}
			})
		})
		if t.Failed() {
			return
		}
	}
	n.stop(uid, time.Second)
	if left, err := os.ReadDir(n.driver.paths.RootDir("")); err != nil || len(left) != 0 {
		t.Errorf("after the end there is %v, %v", left, err)
	}
}

// If the disk with the volumes is lost, the init containers run again first, and the status
// reports the loss.
func TestPrivilegedVMThatLosesItsDiskStartsFromItsInitContainers(t *testing.T) {
	t.Parallel()
	const uid = "u1"
	n := lossNode(t, uid, false)
	zeros := func(disk, _ string) error {
		f, err := os.OpenFile(disk, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(make([]byte, 4096))
		return errors.Join(err, f.Close())
	}
	for i, way := range []struct {
		name string
		harm func(disk, note string) error
	}{
		{"it is removed", func(disk, _ string) error { return os.Remove(disk) }},
		{"it is cut short", func(disk, _ string) error { return os.Truncate(disk, 1<<20) }},
		{"its superblock is zeros", zeros},
		{"its note is damaged", func(_, note string) error { return os.WriteFile(note, []byte("{"), 0o600) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			n.within(t, func() {
				n.crash(uid, way.harm)
				s := n.awaitRun(uid, int32(i+1))
				if got := n.linesOf(uid); got != "init word" {
					t.Errorf("the volume has %q, want what a first start leaves", got)
				}
				if c := s.InitContainers[0]; c.RestartCount != int32(i+1) || c.LastState != nil && c.LastState.Reason != reasonVolumesLost {
					t.Errorf("the init container is %+v, want it run again", c)
				}
				if last := s.Containers[0].LastState; last == nil || last.Reason != reasonVolumesLost || !strings.Contains(last.Message, "its volumes were lost: ") {
					t.Errorf("the last run ended with %+v, want %s and why", last, reasonVolumesLost)
				}
			})
		})
		if t.Failed() {
			return
		}
	}
	n.stop(uid, time.Second)
}

// Data that init containers prepared in the memory of a microVM ends with the microVM.
func TestPrivilegedVMWithAMemoryVolumeStartsFromItsInitContainers(t *testing.T) {
	t.Parallel()
	n := lossNode(t, "u1", true)
	n.killVMM("u1")
	s := n.awaitRun("u1", 1)
	if got := n.linesOf("u1"); got != "init word init word" {
		t.Errorf("the volume has %q, want the lines of two starts", got)
	}
	if c := s.InitContainers[0]; c.RestartCount != 1 {
		t.Errorf("the init container is %+v", c)
	}
	n.stop("u1", time.Second)
}

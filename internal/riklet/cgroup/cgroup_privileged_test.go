package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rik.dev/rik/internal/testkit/privileged"
)

func TestPrivilegedDestroyKillsAndRemoves(t *testing.T) {
	privileged.Require(t)
	layout, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	group := fmt.Sprintf("/riktest-cgroup-%d", os.Getpid())
	if _, err := layout.Make(group + "/inner"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t.Cleanup(func() { _ = layout.Destroy(ctx, group) })

	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, path := range layout.Paths(group + "/inner") {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := layout.inherit(path); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(path, "cgroup.procs")
		if err := os.WriteFile(file, []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			t.Fatalf("joining %s: %v", file, err)
		}
	}
	if !layout.Contains(group, cmd.Process.Pid) || layout.Contains(group+"x", cmd.Process.Pid) {
		t.Error("Contains() does not find the group of the process")
	}
	if _, err := layout.Stats(group); err != nil {
		t.Errorf("Stats() = %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- cmd.Wait() }()
	if err := layout.Destroy(ctx, group); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err == nil {
		t.Error("the process ended by itself, want killed")
	}
	if layout.Exists(group) {
		t.Error("the group is still there")
	}
	if err := layout.Destroy(ctx, group); err != nil {
		t.Errorf("second Destroy() = %v", err)
	}
}

func TestPrivilegedCreateBoundsFreezesAndDies(t *testing.T) {
	privileged.Require(t)
	layout, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	parent := fmt.Sprintf("/riktest-create-%d", os.Getpid())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t.Cleanup(func() { _ = layout.Destroy(ctx, parent) })
	var procs []string
	// The second time, the limits change.
	for _, limits := range []Limits{{}, {MemoryBytes: 32 << 20, MilliCPU: 1500, PIDs: 7}} {
		if procs, err = layout.Create(parent+"/one", limits); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range layout.settings(parent+"/one", Limits{MemoryBytes: 32 << 20, MilliCPU: 1500, PIDs: 7}) {
		if got, err := os.ReadFile(s.path); err != nil || strings.TrimSpace(string(got)) != s.value {
			t.Errorf("%s = %q, %v; want %q", s.path, got, err, s.value)
		}
	}
	// This process uses memory until it is killed.
	memoryUser := exec.Command("/bin/sh", "-c", "read go; tail /dev/zero")
	stdin, err := memoryUser.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := memoryUser.Start(); err != nil {
		t.Fatal(err)
	}
	for _, file := range procs {
		if err := os.WriteFile(file, []byte(fmt.Sprint(memoryUser.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, frozen := range []bool{true, true, false, false} {
		if err := layout.Freeze(parent+"/one", frozen); err != nil {
			t.Fatal(err)
		}
	}
	_, _ = stdin.Write([]byte("go\n"))
	if err := memoryUser.Wait(); err == nil {
		t.Error("it had all the memory it wanted")
	}
	if layout.OOMKills(parent+"/one") == 0 {
		t.Error("OOMKills() = 0")
	}
	// A frozen process can be killed too.
	sleeper := exec.Command("/bin/sleep", "1000")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	for _, file := range procs {
		if err := os.WriteFile(file, []byte(fmt.Sprint(sleeper.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := layout.Freeze(parent+"/one", true); err != nil {
		t.Fatal(err)
	}
	go func() { _ = sleeper.Wait() }()
	if err := layout.Destroy(ctx, parent); err != nil {
		t.Fatal(err)
	}
	if err := layout.Freeze(parent+"/one", false); err != nil {
		t.Errorf("Freeze(false) of a removed group = %v", err)
	}
}

func TestPrivilegedUnthrottle(t *testing.T) {
	privileged.Require(t)
	layout, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	parent := fmt.Sprintf("/riktest-throttle-%d", os.Getpid())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t.Cleanup(func() { _ = layout.Destroy(ctx, parent) })
	limits := map[string]Limits{parent + "/one": {MilliCPU: 400}, parent + "/one/inner": {MilliCPU: 200}}
	for _, group := range []string{parent + "/one", parent + "/one/inner"} {
		if _, err := layout.Create(group, limits[group]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := layout.Unthrottle(parent); err != nil {
			t.Fatal(err)
		}
	}
	for group, limit := range limits {
		for _, s := range layout.settings(group, limit) {
			got, err := os.ReadFile(s.path)
			if text := strings.TrimSpace(string(got)); err != nil || text != "-1" && text != "max 100000" {
				t.Errorf("%s = %q, %v; want no bound", s.path, text, err)
			}
		}
	}
}

package engine

import (
	"errors"
	"syscall"
	"testing"
)

// Every Linux signal is a valid stop signal, and everything else is rejected.
func TestStopSignals(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]syscall.Signal{
		"": syscall.SIGTERM, "SIGINT": syscall.SIGINT, "quit": syscall.SIGQUIT, "9": syscall.SIGKILL, "SIGSTKFLT": 16, "SIGPWR": 30, "cont": syscall.SIGCONT,
		"SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMIN+30": 64, "SIGRTMAX": 64, "SIGRTMAX-14": 50, "64": 64,
	} {
		if got, err := StopSignal(name); got != want || err != nil {
			t.Errorf("StopSignal(%q) = %v, %v, want %v", name, got, err, want)
		}
	}
	for _, name := range []string{"nonsense", "SIGNONE", "0", "-1", "65", "99", "SIGRTMIN+31", "SIGRTMIN-1", "SIGRTMAX+1", "SIGRTMIN3", "SIGRTMIN+", "SIG"} {
		if got, err := StopSignal(name); !errors.Is(err, ErrStopSignal) || !(&Engine{}).IsPermanent(err) {
			t.Errorf("StopSignal(%q) = %v, %v, want ErrStopSignal", name, got, err)
		}
	}
}

func TestSplitID(t *testing.T) {
	t.Parallel()
	uid, name, ok := SplitID(ContainerID("0b5c1e8e-0000-4000-8000-000000000000", "my-app"))
	if !ok || uid != "0b5c1e8e-0000-4000-8000-000000000000" || name != "my-app" {
		t.Errorf("SplitID() = %q, %q, %v", uid, name, ok)
	}
	for _, id := range []string{"", "pod.", "pod.u", "pod.u.", "pod..c", "other.u.c", "pod.../etc.c", "pod.u.c.d"} {
		if uid, name, ok := SplitID(id); ok {
			t.Errorf("SplitID(%q) = %q, %q", id, uid, name)
		}
	}
}

package nested

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestMove(t *testing.T) {
	t.Parallel()
	var moved []string
	err := move(strings.NewReader("1\n17\n0\nno number\n23\n"), func(pid string) error {
		if pid == "17" {
			return unix.ESRCH // it has ended
		}
		moved = append(moved, pid)
		return nil
	})
	if diff := cmp.Diff([]string{"1", "23"}, moved); diff != "" || err != nil {
		t.Errorf("move() = %v, moved (-want +got):\n%s", err, diff)
	}
	err = move(strings.NewReader("1\n"), func(string) error { return unix.EBUSY })
	if !errors.Is(err, unix.EBUSY) {
		t.Errorf("move() = %v, want %v", err, unix.EBUSY)
	}
}

// Outside of a container, Run would stop every process of the machine.
func TestRunRefusesTheMachine(t *testing.T) {
	t.Parallel()
	if _, err := (Node{Argv: []string{"/bin/true"}}).Run(); !errors.Is(err, errNotFirst) {
		t.Errorf("Run() = %v, want %v", err, errNotFirst)
	}
}

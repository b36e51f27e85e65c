package runner

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/resource"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func readFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}

// unopened returns a driver without files. It can make machines, but not run them.
func unopened(cfg Config) *Driver {
	d := &Driver{cfg: cfg}
	d.engines = newEngines(d)
	return d
}

// snapshot is where the snapshot of a microVM is. scratch is its writable disk.
func (n *node) snapshot(uid string) string {
	return filepath.Join(n.cfg.Root, "pods", uid, "snapshot")
}

func (n *node) scratch(uid string) string {
	return filepath.Join(n.cfg.Root, "pods", uid, "scratch.img")
}

// runc calls the node's runc.
func (n *node) runc(order, container string) error {
	return exec.Command(n.cfg.Runc, "--root", filepath.Join(n.cfg.Run, "runtimes", "runc"), order, container).Run()
}

// runcStatus returns the status that the node's runc reports for a container.
func (n *node) runcStatus(container string) string {
	n.Helper()
	var state struct{ Status string }
	out, err := exec.Command(n.cfg.Runc, "--root", filepath.Join(n.cfg.Run, "runtimes", "runc"), "state", container).Output()
	if err == nil {
		err = json.Unmarshal(out, &state)
	}
	if err != nil {
		n.Error(err)
	}
	return state.Status
}

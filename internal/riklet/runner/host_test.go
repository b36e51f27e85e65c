package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/lifecycle"
)

// envHost is the variable that makes this test binary host a driver instead of running tests.
const envHost = "RIK_TEST_POD_HOST"

// hosting is the configuration that a hosting process receives in envHost.
type hosting struct {
	Dir, Tools string
	Network    int    // a process in the node's network namespace; 0: no network
	VMM        string // the name of a VMM driver; "": none
	Instance   instance.Instance
	// KillStep and KillAt are the point at which the process kills itself with SIGKILL.
	KillStep string
	KillAt   lifecycle.Point
	// Stop is true if the instance is stopped once it runs. KillStep applies only after that.
	Stop bool
	// Exec is a command that is executed once the instance runs. It prints "running" instead of
	// the host process.
	Exec []string
}

// host runs a driver until it is killed. It prints "running" once its instance runs.
func host() int {
	if err := hostUntilKilled(); err != nil {
		fmt.Fprintln(os.Stderr, "hosting a driver:", err)
	}
	return 1
}

func hostUntilKilled() error {
	var h hosting
	if err := json.Unmarshal([]byte(os.Getenv(envHost)), &h); err != nil {
		return err
	}
	tools.dir, tools.shim, tools.vmm = h.Tools, shimIn(h.Tools), doubleIn(h.Tools)
	cfg := settings(h.Dir, &objects{})
	images, err := openImages(h.Dir)
	if err != nil {
		return err
	}
	cfg.Images = images
	if h.Network != 0 {
		_, network, err := openNetwork(h.Network, networkSettings)
		if err != nil {
			return err
		}
		cfg.Network, cfg.Dial = network, dialerIn(h.Network)
	}
	if h.VMM != "" {
		if cfg.VM, err = openVM(h.Dir, h.VMM); err != nil {
			return err
		}
		if cfg.VM.Disks, err = openDisks(h.Dir, images); err != nil {
			return err
		}
	}
	cfg.Hook = func(step string, at lifecycle.Point) error {
		if step == h.KillStep && at == h.KillAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return nil
	}
	changed := make(chan struct{}, 1)
	cfg.Changed = func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	d, err := New(cfg)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := errors.Join(d.Recover(ctx), d.Ensure(h.Instance)); err != nil {
		return err
	}
	go func() { _ = d.Run(ctx) }()
	var once sync.Once
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed:
		}
		for _, o := range d.Observations() {
			if o.Status.Phase == rikv1alpha1.InstanceRunning {
				if h.Exec != nil {
					once.Do(func() {
						go func() {
							_, _ = d.Exec(ctx, o.UID, "", instance.ExecOptions{Command: h.Exec, Stdout: os.Stdout})
						}()
					})
					continue
				}
				fmt.Println("running")
				if h.Stop {
					d.Stop(o.UID, 0)
					h.Stop = false
				}
			}
		}
	}
	return context.Cause(ctx)
}

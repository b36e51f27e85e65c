package instancefake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// Exit ends the process of a running instance with an exit code, as if it had ended by itself. The
// driver does not restart it.
func (d *Driver) Exit(uid string, code int32) {
	d.change(uid, func(r *record) bool {
		if r.status.Phase != rikv1alpha1.InstanceRunning {
			return false
		}
		now := metav1.Now()
		r.status.Phase, r.status.Ready, r.status.FinishedAt = rikv1alpha1.InstanceCompleted, false, &now
		if code != 0 {
			r.status.Phase, r.status.Reason = rikv1alpha1.InstanceFailed, "Error"
		}
		for i := range r.status.Containers {
			c := &r.status.Containers[i]
			c.State, c.Ready, c.ExitCode, c.FinishedAt = rikv1alpha1.ContainerExited, false, &code, &now
		}
		return true
	})
}

// Print adds a line to the instance's log.
func (h *Host) Print(uid, text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.records[uid]; r != nil {
		r.log = append(r.log, line{time.Now(), text})
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// Running returns what runs on the machine, independently of a driver.
func (h *Host) Running() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var uids []string
	for _, uid := range slices.Sorted(maps.Keys(h.records)) {
		switch h.records[uid].status.Phase {
		case rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceDestroying:
			uids = append(uids, uid)
		}
	}
	return uids
}

// Starts returns how often the instance's process was started.
func (h *Host) Starts(uid string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.starts[uid]
}

// container checks that the instance runs and has the container. An empty name means the first
// container.
func (d *Driver) container(uid, name string) error {
	d.host.mu.Lock()
	defer d.host.mu.Unlock()
	r := d.host.records[uid]
	if r == nil {
		return fmt.Errorf("instance %s: %w", uid, instance.ErrUnknown)
	}
	known := name == "" || slices.ContainsFunc(r.in.Template.Processes(), func(c rikv1alpha1.Container) bool { return c.Name == name })
	if !known {
		return fmt.Errorf("container %q of instance %s: %w", name, uid, instance.ErrUnknown)
	}
	if r.status.Phase != rikv1alpha1.InstanceRunning {
		return fmt.Errorf("instance %s: %w", uid, instance.ErrNotRunning)
	}
	return nil
}

// Logs implements instance.Driver with the lines of [Host.Print].
func (d *Driver) Logs(ctx context.Context, uid, container string, options instance.LogOptions, w io.Writer) error {
	if err := d.container(uid, container); err != nil && !errors.Is(err, instance.ErrNotRunning) {
		return err
	}
	for at := -1; ; {
		lines, changed, ended := d.host.lines(uid)
		if at < 0 {
			at = 0
			if options.TailLines != nil {
				at = max(0, len(lines)-int(*options.TailLines))
			}
		}
		for ; at < len(lines); at++ {
			if lines[at].at.Before(options.Since) {
				continue
			}
			text := lines[at].text + "\n"
			if options.Timestamps {
				text = lines[at].at.UTC().Format(time.RFC3339Nano) + " " + text
			}
			if _, err := io.WriteString(w, text); err != nil {
				return fmt.Errorf("writing the log: %w", err)
			}
		}
		if !options.Follow || ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// lines returns the log, a channel that is closed when the log may have grown, and whether the
// instance is removed.
func (h *Host) lines(uid string) ([]line, chan struct{}, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.records[uid]
	if r == nil || r.status.Phase == rikv1alpha1.InstanceTerminated {
		return nil, h.changed, true
	}
	return slices.Clone(r.log), h.changed, r.status.Phase.Ended()
}

// Exec implements instance.Driver. The commands are echo WORDS, cat, exit CODE, sleep (until its
// context ends) and sizes, which prints the terminal's sizes until its input ends.
func (d *Driver) Exec(ctx context.Context, uid, container string, options instance.ExecOptions) (int, error) {
	if err := d.container(uid, container); err != nil {
		return 0, err
	}
	if d.cfg.Exec != nil {
		return d.cfg.Exec(ctx, uid, container, options)
	}
	if len(options.Command) == 0 {
		return 0, errors.New("an empty command")
	}
	args := options.Command[1:]
	switch options.Command[0] {
	case "echo":
		_, err := io.WriteString(options.Stdout, strings.Join(args, " ")+"\n")
		return 0, err
	case "cat":
		if options.Stdin == nil {
			return 0, nil
		}
		_, err := io.Copy(options.Stdout, options.Stdin)
		return 0, err
	case "exit":
		code, err := strconv.Atoi(strings.Join(args, ""))
		return code, err
	case "sleep":
		<-ctx.Done()
		return 137, nil
	case "sizes":
		return 0, sizes(ctx, options)
	default:
		_, err := fmt.Fprintf(options.Stderr, "%s: not found\n", options.Command[0])
		return 127, err
	}
}

func sizes(ctx context.Context, options instance.ExecOptions) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case size, ok := <-options.Resize:
			if !ok {
				return nil
			}
			if _, err := fmt.Fprintf(options.Stdout, "%dx%d\n", size.Width, size.Height); err != nil {
				return err
			}
		}
	}
}

// Dial implements instance.Driver: every instance has an echo server on port 7 and refuses
// connections to other ports.
func (d *Driver) Dial(_ context.Context, uid string, port int32) (io.ReadWriteCloser, error) {
	if err := d.container(uid, ""); err != nil {
		return nil, err
	}
	if port != 7 {
		return nil, fmt.Errorf("dialing port %d: connection refused", port)
	}
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(theirs, theirs)
		_ = theirs.Close()
	}()
	return ours, nil
}

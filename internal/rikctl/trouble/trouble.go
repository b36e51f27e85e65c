// Package trouble explains what keeps an instance from running or from being ready, and names the
// next step.
package trouble

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/target"
)

// The reasons of a container's or instance's state that have a specific next step.
const (
	reasonCrashLoop    = "CrashLoopBackOff"
	reasonImagePull    = "ImagePullFailed"
	reasonInvalidImage = "InvalidImage"
	reasonPulling      = "Pulling"
	reasonConfig       = "ConfigError"
	reasonStart        = "StartError"
	reasonNotReady     = "NotReady"
)

// trouble is a problem of an instance and its next step.
type trouble struct{ what, next string }

// ofInstance lists the problems that prevent an instance or its containers from running
// and being ready.
func ofInstance(i *rikv1alpha1.Instance) []trouble {
	var all []trouble
	for _, list := range [][]rikv1alpha1.ContainerStatus{i.Status.InitContainers, i.Status.Containers} {
		for n := range list {
			if t, ok := containerTrouble(i, &list[n]); ok {
				all = append(all, t)
			}
		}
	}
	if len(all) == 0 && i.Status.Message != "" {
		all = append(all, trouble{Reasoned(i.Status.Reason, i.Status.Message), nextStep(i, i.Status.Reason, "")})
	}
	return all
}

func containerTrouble(i *rikv1alpha1.Instance, c *rikv1alpha1.ContainerStatus) (trouble, bool) {
	var what string
	switch {
	case c.Reason == "":
		return trouble{}, false
	case c.State == rikv1alpha1.ContainerWaiting && c.Reason == reasonCrashLoop:
		what = fmt.Sprintf("container %s exits again and again (%s, %d restarts): %s", c.Name, c.Reason, c.RestartCount, c.Message)
		if c.ExitCode != nil {
			what += fmt.Sprintf("; its last run ended with code %d", *c.ExitCode)
		}
		what += "; it restarts after a backoff"
	case c.State == rikv1alpha1.ContainerWaiting:
		what = "container " + c.Name + " waits: " + Reasoned(c.Reason, c.Message)
	case c.State == rikv1alpha1.ContainerRunning && c.Reason == reasonNotReady:
		what = "container " + c.Name + " runs but is not ready: " + c.Message
	case c.State == rikv1alpha1.ContainerExited && c.ExitCode != nil && *c.ExitCode != 0:
		what = fmt.Sprintf("container %s ended with code %d: %s", c.Name, *c.ExitCode, Reasoned(c.Reason, c.Message))
	default:
		return trouble{}, false
	}
	return trouble{what, nextStep(i, c.Reason, c.Name)}, true
}

// Reasoned joins a reason and a message, of which either may be empty.
func Reasoned(reason, message string) string {
	return strings.TrimSuffix(strings.TrimPrefix(reason+": "+message, ": "), ": ")
}

// nextStep returns what a user can do about a reason.
func nextStep(i *rikv1alpha1.Instance, reason, container string) string {
	logs := "rikctl logs " + i.Name
	if container != "" && len(i.Status.Containers)+len(i.Status.InitContainers) > 1 {
		logs += " -c " + container
	}
	switch reason {
	case reasonImagePull:
		return "check the image's name, the registry and the pull secret; the node retries by itself"
	case reasonInvalidImage:
		return "correct the image in the workload; a retry does not help"
	case reasonPulling:
		return "wait; the node retries a pull that makes no progress"
	case reasonConfig:
		return "correct the object to which the workload refers, such as a Secret or a ConfigMap; the node retries automatically"
	case reasonStart:
		return "correct the container's command; the node retries by itself"
	case reasonNotReady:
		return "look at the readiness probe; \"" + logs + "\" shows its output"
	}
	if container == "" {
		return "\"rikctl describe instance " + i.Name + "\" shows its events"
	}
	return "\"" + logs + "\" shows the output of its last run"
}

// OfWorkload lists the problems of a workload's instances, one line each, without duplicates.
func OfWorkload(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) []string {
	instances, err := target.InstancesOf(ctx, c, w)
	if err != nil {
		return nil // the caller still watches the workload
	}
	var lines []string
	seen := map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.Status.Ready || i.DeletionTimestamp != nil {
			continue
		}
		for _, t := range ofInstance(i) {
			if !seen[t.what] && len(lines) < maxTroubles {
				seen[t.what] = true
				lines = append(lines, fmt.Sprintf("  instance %s is %s: %s", i.Name, target.PhaseOf(i), t.what))
			}
		}
	}
	return lines
}

// maxTroubles limits the lines about instances in one report.
const maxTroubles = 3

// NotStarted returns the container whose log is requested, if it has not started yet.
func NotStarted(i *rikv1alpha1.Instance, container string) (string, error) {
	for _, list := range [][]rikv1alpha1.ContainerStatus{i.Status.Containers, i.Status.InitContainers} {
		for n := range list {
			c := &list[n]
			if container != "" && c.Name != container {
				continue
			}
			if c.State == rikv1alpha1.ContainerWaiting && c.StartedAt == nil && c.LastState == nil && c.RestartCount == 0 {
				return c.Name, errors.New(strings.TrimSuffix(Reasoned(i.Status.Reason, i.Status.Message), ": "))
			}
			return "", nil
		}
	}
	return "", nil
}

// Print writes the problems of an instance.
func Print(out io.Writer, i *rikv1alpha1.Instance) {
	all := ofInstance(i)
	for _, t := range all {
		_, _ = fmt.Fprintf(out, "Instance %s, %s\n", i.Name, printers.EscapeTerminal(t.what))
		_, _ = fmt.Fprintf(out, "  next: %s\n", t.next)
	}
	if len(all) > 0 {
		_, _ = fmt.Fprintln(out)
	}
}

package rikctl

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kubectl/pkg/cmd/wait"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// waitCommand is kubectl's wait, and a short way to wait for a phase.
func (t *tool) waitCommand() *cobra.Command {
	cmd := wait.NewCmdWait(t.getter, t.streams)
	cmd.PreRunE = func(cmd *cobra.Command, given []string) error {
		conditions, ok := cmd.Flags().Lookup("for").Value.(pflag.SliceValue)
		if !ok {
			return nil
		}
		if err := judgeConditions(cmd, conditions.GetSlice(), given); err != nil {
			return err
		}
		return conditions.Replace(longConditions(conditions.GetSlice()))
	}
	return cmd
}

const waitForms = "delete, create, condition=Ready, phase=Running or jsonpath='{.status.readyReplicas}'=3"

// judgeConditions refuses what would be no condition, or would be waited for in
// vain.
func judgeConditions(cmd *cobra.Command, conditions, given []string) error {
	if len(conditions) == 0 {
		return usagef(cmd, "--for is required: %s", waitForms)
	}
	for _, c := range conditions {
		kind, value, valued := strings.Cut(c, "=")
		switch kind = strings.ToLower(kind); {
		case (kind == "delete" || kind == "create") && !valued:
		case (kind == "condition" || kind == "jsonpath" || kind == "phase") && value != "":
			if kind == "phase" && ofInstances(given) && !slices.Contains(phases, rikv1alpha1.InstancePhase(value)) {
				return usagef(cmd, "instances have no phase %q: it is one of %v", value, phases)
			}
		default:
			return usagef(cmd, "--for=%s is not understood: it is %s", c, waitForms)
		}
	}
	return nil
}

// phases that an instance can have.
var phases = []rikv1alpha1.InstancePhase{
	rikv1alpha1.InstancePending, rikv1alpha1.InstanceCreating, rikv1alpha1.InstanceRunning, rikv1alpha1.InstanceCompleted,
	rikv1alpha1.InstanceFailed, rikv1alpha1.InstanceUnknown,
}

// ofInstances says whether the arguments of wait name instances.
func ofInstances(given []string) bool {
	if len(given) == 0 {
		return false
	}
	kind, _, _ := strings.Cut(given[0], "/")
	kind, _, _ = strings.Cut(kind, ".")
	return slices.Contains(instanceWords, kind)
}

// longConditions writes the short forms out.
func longConditions(conditions []string) []string {
	out := slices.Clone(conditions)
	for i, c := range out {
		if phase, ok := strings.CutPrefix(c, "phase="); ok {
			out[i] = "jsonpath={.status.phase}=" + phase
		}
	}
	return out
}

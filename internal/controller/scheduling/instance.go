package scheduling

import rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"

// grace returns the time between SIGTERM and SIGKILL that a deletion requested, in seconds. A
// negative value means that the template sets the time.
func grace(in *rikv1alpha1.Instance) int64 {
	if in.DeletionGracePeriodSeconds == nil {
		return -1
	}
	return *in.DeletionGracePeriodSeconds
}

// ended reports whether an instance will never run again. A deletion overwrites the phase, but
// not the time at which the instance ended.
func ended(in *rikv1alpha1.Instance) bool {
	return in.Status.Phase.Ended() || in.Status.FinishedAt != nil
}

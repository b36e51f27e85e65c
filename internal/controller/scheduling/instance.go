package scheduling

import rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"

// grace is the time between the polite and the hard signal that a deletion
// asked for; negative when it is the template's to say.
func grace(in *rikv1alpha1.Instance) int64 {
	if in.DeletionGracePeriodSeconds == nil {
		return -1
	}
	return *in.DeletionGracePeriodSeconds
}

// ended says whether an instance will never run again. Its deletion overwrites
// the phase, but not the time at which it ended.
func ended(in *rikv1alpha1.Instance) bool {
	return in.Status.Phase.Ended() || in.Status.FinishedAt != nil
}

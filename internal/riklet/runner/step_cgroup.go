package runner

import (
	"context"
)

// vmmMilliCPU is the CPU weight that a VMM gets in addition to its instance's request, in
// thousandths of a processor. With it, an instance that requests nothing still boots next to busy
// instances.
const vmmMilliCPU = 100

// setWeight sets the instance's CPU weight from its requests, which the scheduler reserved at its
// placement. The containers of an instance share its weight.
func (b *build) setWeight(context.Context) error {
	milli := b.Instance.Template.EffectiveRequests().MilliCPU()
	if b.Instance.Template.Virtual() {
		milli += vmmMilliCPU
	}
	return b.d.cgroups.SetWeight(b.d.cgroup(b.Instance.UID), milli)
}

package nodev1

// Limits of a Measurements message. A part with MaxUsages usages of microVMs has less than
// 256 KiB.
const (
	// MaxUsages is the number of usages in one message.
	MaxUsages = 1000
	// MaxDisks is the number of disks of a machine.
	MaxDisks = 64
)

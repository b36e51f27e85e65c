package fetch

import (
	"cmp"
	"time"
)

// Limits bound one thing that a store fetches and makes something of.
type Limits struct {
	// Bytes and Entries (files, directories and links) are of what it contains.
	Bytes, Entries int64
	// DownloadBytes are of what is fetched.
	DownloadBytes int64
	// Time is for the download, and again for what is made of it.
	Time time.Duration
	// Stall is how long a download may stand still.
	Stall time.Duration
	// ReserveBytes stay free on the file system.
	ReserveBytes int64
}

// Or gives the limits with those that are not above 0 from others.
func (l Limits) Or(others Limits) Limits {
	return Limits{
		Bytes: either(l.Bytes, others.Bytes), Entries: either(l.Entries, others.Entries), DownloadBytes: either(l.DownloadBytes, others.DownloadBytes),
		Time: either(l.Time, others.Time), Stall: either(l.Stall, others.Stall), ReserveBytes: either(l.ReserveBytes, others.ReserveBytes),
	}
}

func either[N ~int64](one, other N) N { return cmp.Or(max(one, 0), other) }

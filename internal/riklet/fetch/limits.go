package fetch

import (
	"cmp"
	"time"
)

// Limits limit the fetching of one item and its conversion.
type Limits struct {
	// Bytes and Entries (files, directories and links) limit its content.
	Bytes, Entries int64
	// DownloadBytes limits the download.
	DownloadBytes int64
	// Time limits the download, and separately its conversion.
	Time time.Duration
	// Stall is the maximum time of a download without data.
	Stall time.Duration
	// ReserveBytes must stay free on the file system.
	ReserveBytes int64
}

// Or returns the limits, with those that are not above 0 replaced by others.
func (l Limits) Or(others Limits) Limits {
	return Limits{
		Bytes: either(l.Bytes, others.Bytes), Entries: either(l.Entries, others.Entries), DownloadBytes: either(l.DownloadBytes, others.DownloadBytes),
		Time: either(l.Time, others.Time), Stall: either(l.Stall, others.Stall), ReserveBytes: either(l.ReserveBytes, others.ReserveBytes),
	}
}

func either[N ~int64](one, other N) N { return cmp.Or(max(one, 0), other) }

package proxy

import (
	"time"

	"rik.dev/rik/internal/riklet/network/netmap"
)

// drains maps the UIDs of draining endpoints to the time at which this node learned of it. Thus
// the clocks of different nodes do not matter.
type drains map[string]time.Time

// over updates the draining endpoints. It returns the UIDs whose drain period is over, and the
// time at which the next one is over. The zero time means that no other endpoint drains.
func (d drains) over(s *netmap.Snapshot, now time.Time, period time.Duration) (drained map[string]bool, next time.Time) {
	drained = map[string]bool{}
	there := map[string]bool{}
	if s != nil {
		for _, all := range s.Endpoints {
			for uid, e := range all {
				if e.Draining && !e.Ready {
					there[uid] = true
				}
			}
		}
	}
	for uid := range d {
		if !there[uid] {
			delete(d, uid)
		}
	}
	for uid := range there {
		if _, known := d[uid]; !known {
			d[uid] = now
		}
		end := d[uid].Add(period)
		switch {
		case !now.Before(end):
			drained[uid] = true
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	return drained, next
}

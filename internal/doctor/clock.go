package doctor

import (
	"fmt"
	"time"

	"rik.dev/rik/internal/pki"
)

// toleratedSkew is the skew above which there is a warning. Heartbeats and leases do not depend on
// clocks of other machines, but a larger skew shows that a clock is not set, and it grows.
const toleratedSkew = 10 * time.Second

func checkSynchronized(m *Machine) []Finding {
	switch {
	case !m.Clock.Known:
		return []Finding{{Severity: Info, Message: "The kernel does not say whether the clock is synchronized."}}
	case m.Clock.Synchronized:
		return ok("The clock is synchronized.")
	}
	f := Finding{
		Severity: Warning, Message: "The clock is not synchronized.",
		Affects: "certificates and tokens are refused when clocks differ by minutes; times in logs do not match",
	}
	switch {
	case m.Clock.Service != "":
		f.Message = fmt.Sprintf("The clock is not synchronized, although %s runs. It may not reach its time servers.", m.Clock.Service)
		f.Fix = "systemctl restart " + quote(m.Clock.Service)
	case m.Distribution.family() == "apt":
		f.Fix = steps(m.Distribution.install(packages{apt: "chrony"}), "systemctl enable --now chrony")
	case m.Distribution.family() == "dnf":
		f.Fix = steps(m.Distribution.install(packages{dnf: "chrony"}), "systemctl enable --now chronyd")
	}
	return []Finding{f}
}

func checkSkew(m *Machine) []Finding {
	if m.Clock.Skew == nil {
		return []Finding{{Severity: OK, Message: "The clock was not compared with a server's, because no server answered."}}
	}
	skew := *m.Clock.Skew
	size, side := skew, "ahead of"
	if skew < 0 {
		size, side = -skew, "behind"
	}
	text := fmt.Sprintf("The clock of this machine is %s %s that of the server %s.", size.Round(time.Second), side, m.Server.Host)
	f := Finding{Object: m.Server.Host, Message: text, Fix: clockFix(m)}
	switch {
	case size > pki.Backdate:
		f.Severity, f.Affects = Error, "this machine and the server refuse each other's certificates"
	case size > toleratedSkew:
		f.Severity, f.Affects = Warning, fmt.Sprintf("certificates are refused when the difference exceeds %s", pki.Backdate)
	default:
		return ok(fmt.Sprintf("The clocks of this machine and of the server %s differ by less than %s.", m.Server.Host, toleratedSkew))
	}
	return []Finding{f}
}

// clockFix returns the command that sets the clock of this machine now. The clock of the server may
// be the wrong one; then the same command helps there.
func clockFix(m *Machine) string {
	switch m.Clock.Service {
	case "chrony", "chronyd", "chrony.service", "chronyd.service":
		return "chronyc makestep"
	case "":
		if synchronize := checkSynchronized(m); synchronize[0].Fix != "" {
			return synchronize[0].Fix
		}
		return "timedatectl set-ntp true"
	}
	return "systemctl restart " + quote(m.Clock.Service)
}

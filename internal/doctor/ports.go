package doctor

import (
	"fmt"
	"slices"

	"rik.dev/rik/internal/portowner"
	"rik.dev/rik/internal/riklet/network/bridge"
)

// own are the names of rik's programs, as the kernel shows them.
var own = []string{"rik", "riklet", "rik-dns", "controller", "scheduler"}

func checkPorts(m *Machine) []Finding {
	var all []Finding
	for _, p := range m.Ports {
		all = append(all, p.find())
	}
	if len(all) == 0 {
		return ok("This machine needs no free port.")
	}
	return all
}

func (p Port) find() Finding {
	f := Finding{ID: p.ID, Object: fmt.Sprintf("%d/%s", p.Number, p.Protocol), Severity: OK}
	switch {
	case !p.Taken:
		f.Message = fmt.Sprintf("Port %s is free; it is for %s.", f.Object, p.Purpose)
	case p.Device != "" && bridge.IsDevice(p.Device):
		f.Message = fmt.Sprintf("Port %s is used by rik's device %s, for %s.", f.Object, p.Device, p.Purpose)
	case slices.Contains(own, p.Owner.Program):
		f.Message = fmt.Sprintf("Port %s is used by %s, for %s.", f.Object, p.Owner, p.Purpose)
	default:
		f.Severity = Error
		f.Message = fmt.Sprintf("Port %s is in use by %s. rik needs it for %s.", f.Object, p.holder(), p.Purpose)
		f.Affects = p.Purpose
		f.Fix = p.free()
		if p.Flag != "" {
			f.Message += fmt.Sprintf(" The flag %s chooses another port.", p.Flag)
		}
	}
	return f
}

func (p Port) holder() string {
	switch {
	case p.Device != "":
		return "the network device " + p.Device
	case p.Owner == (portowner.Owner{}):
		return "a process that is not visible"
	case p.Unit != "":
		return fmt.Sprintf("%s of the unit %s", p.Owner, p.Unit)
	}
	return p.Owner.String()
}

// free returns the command that stops the process that has the port.
func (p Port) free() string {
	switch {
	case p.Device != "":
		return "ip link delete " + quote(p.Device)
	case p.Unit != "":
		return "systemctl disable --now " + quote(p.Unit)
	case p.Owner.PID != 0:
		return fmt.Sprintf("kill %d", p.Owner.PID)
	}
	return ""
}

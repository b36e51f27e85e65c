package nodev1

import "fmt"

// Protocol is the version of the protocol of this package. A change after which an older peer
// would misunderstand this one increases it. There is no negotiation: peers of different
// versions refuse each other.
const Protocol = 2

// Program is one end of a connection.
type Program struct {
	// Version is the program's own, for people. It may be empty.
	Version string
	// Protocol is 0 for programs that do not send it.
	Protocol uint32
}

func (p Program) version() string {
	if p.Version == "" {
		return "of an unknown version"
	}
	return p.Version
}

// Mismatch returns why a node's riklet and its controller cannot work together, and the next
// step. It is empty if they can.
func Mismatch(node string, riklet, controller Program) string {
	if riklet.Protocol == controller.Protocol {
		return ""
	}
	step := fmt.Sprintf("install rik %s on the node and restart its riklet; its instances keep running", controller.version())
	if riklet.Protocol > controller.Protocol {
		step = fmt.Sprintf("install rik %s on the server and restart it; instances keep running", riklet.version())
	}
	return fmt.Sprintf("node %q runs rik %s with version %d of the node protocol, and its controller runs rik %s with version %d: %s",
		node, riklet.version(), riklet.Protocol, controller.version(), controller.Protocol, step)
}

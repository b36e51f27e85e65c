// Package nodev1 is the protocol between the riklet and the controller. The files *.pb.go are
// generated from proto/rik/node/v1. The others hold what both ends must agree on: the version of
// the protocol, the limits of sessions, and texts.
package nodev1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// ConnectedTwice returns the error of the controller and of the scheduler for a second riklet
// that connects while the first is connected under the same node name. If they accepted the
// second one, the two would replace each other's connection several times a second.
func ConnectedTwice(node, from string) string {
	return fmt.Sprintf("another riklet is connected as node %q, from %s, with the same certificate. If this is the only riklet, its earlier connection ends within 20 s. "+
		"Otherwise one of the two is a copy: stop it, and give it another --node-name and an empty --state-dir", node, from)
}

// InstallationID returns what the cluster stores of a JoinRequest's installation_key. A user who
// reads it in a Node cannot join under the Node's name with it. It is empty for an empty key.
func InstallationID(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("rik installation\n" + key))
	return hex.EncodeToString(sum[:16])
}

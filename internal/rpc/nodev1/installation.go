// Package nodev1 is what the riklet and the controller say to each other; all but
// this file is generated from proto/rik/node/v1.
package nodev1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// ConnectedTwice is what a second run of a riklet is told, by the controller and by the
// scheduler, while the first is connected from somewhere under the node's name: to let it
// in would have each end the other's connection, several times a second.
func ConnectedTwice(node, from string) string {
	return fmt.Sprintf("another riklet is connected as node %q, from %s, with the same certificate: if this is the only one, its connection of before is given up within 20 s; "+
		"else stop one of them, which is a copy: give it another --node-name and an empty --state-dir", node, from)
}

// InstallationID is what the cluster keeps of a JoinRequest's installation_key: who reads
// it in a Node cannot join under the Node's name. Empty for an empty key.
func InstallationID(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("rik installation\n" + key))
	return hex.EncodeToString(sum[:16])
}

// Package nodev1 is what the riklet and the controller say to each other; all but
// this file is generated from proto/rik/node/v1.
package nodev1

import (
	"crypto/sha256"
	"encoding/hex"
)

// InstallationID is what the cluster keeps of a JoinRequest's installation_key: who reads
// it in a Node cannot join under the Node's name. Empty for an empty key.
func InstallationID(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("rik installation\n" + key))
	return hex.EncodeToString(sum[:16])
}

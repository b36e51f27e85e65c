package etcd

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/raft/v3/raftpb"

	"rik.dev/rik/internal/boltfile"
)

// checkMembership reads the members of the cluster from etcd's database. etcd ends the process
// when it finds later that they do not agree. Every voter of the last configuration of raft must
// be a member, or a removed one: the two are not always saved in one transaction.
func checkMembership(tx *bolt.Tx) error {
	known := map[string]bool{}
	for _, name := range []string{"members", "members_removed"} {
		bucket := tx.Bucket([]byte(name))
		if bucket == nil {
			continue
		}
		err := bucket.ForEach(func(id, data []byte) error {
			known[string(id)] = true
			if name != "members" {
				return nil
			}
			var member struct {
				ID uint64 `json:"id"`
			}
			if err := json.Unmarshal(data, &member); err != nil || memberKey(member.ID) != string(id) {
				return fmt.Errorf("%w: the record of the member %q cannot be read", boltfile.ErrDamaged, id)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	meta := tx.Bucket([]byte("meta"))
	if meta == nil {
		return nil
	}
	data := meta.Get([]byte("confState"))
	if data == nil {
		return nil
	}
	var state raftpb.ConfState
	if err := json.Unmarshal(data, &state); err != nil || len(state.Voters) == 0 {
		return fmt.Errorf("%w: the list of voters cannot be read", boltfile.ErrDamaged)
	}
	for _, voter := range state.Voters {
		if !known[memberKey(voter)] {
			return fmt.Errorf("%w: the voter %s is not among the members", boltfile.ErrDamaged, memberKey(voter))
		}
	}
	return nil
}

// memberKey is the key of a member in etcd's database.
func memberKey(id uint64) string { return fmt.Sprintf("%x", id) }

// hasMembers reports whether the database belongs to a cluster that has started once.
func hasMembers(tx *bolt.Tx) bool {
	bucket := tx.Bucket([]byte("members"))
	if bucket == nil {
		return false
	}
	id, _ := bucket.Cursor().First()
	return id != nil
}

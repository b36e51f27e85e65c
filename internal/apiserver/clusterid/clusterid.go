// Package clusterid binds a data directory to the datastore of its cluster.
//
// A cluster has an identity: an ID that is made once, and the fingerprints of its
// certificate authority and keys. It is stored in the datastore and, as the file
// [FileName], in the data directory. A server that finds a datastore without the identity
// that its directory expects would serve an empty cluster, and every node would stop what
// it runs. A server that makes a new key beside an old datastore could not read its
// Secrets. This package tells such starts from a first start, and refuses them.
//
// [Find] and [Check] decide and are pure; [Store] and [Read] and [Write] do the rest.
package clusterid

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The flags that a message may name as the next step.
const (
	FlagNewCluster = "--new-cluster"
	FlagAcceptKeys = "--accept-keys"
)

var (
	// ErrDatastore is returned when the datastore is not that of the data directory.
	ErrDatastore = errors.New("the datastore is not the one of this data directory")
	// ErrKeys is returned when a key is missing, or is not the one that the cluster's
	// objects and clients depend on.
	ErrKeys = errors.New("the keys in the data directory are not those of the cluster")
)

// Identity is what a cluster is known by.
type Identity struct {
	// ID is random, and made with the cluster.
	ID string `json:"id"`
	// Profile is that of the servers: cluster or kcp.
	Profile string `json:"profile"`
	// Authority is the fingerprint of the certificate authority.
	Authority string `json:"authority"`
	// Keys are the fingerprints of the keys in each file, by the file's name below the data
	// directory.
	Keys map[string][]string `json:"keys"`
}

// File is what the data directory keeps.
type File struct {
	Identity
	// Datastore describes where the identity was last found, without credentials.
	Datastore string `json:"datastore"`
}

// Situation is what a server finds when it starts, before it has made any key.
type Situation struct {
	Dir       string // the data directory, for messages
	Datastore string // described, without credentials
	// File is nil in a directory that has none.
	File *File
	// Used says that a server without identities has run on the directory.
	Used bool
	// Stored is nil for a datastore that has none.
	Stored *Identity
	// Empty says that the datastore has no objects.
	Empty bool
	// NewCluster is the administrator's word that another cluster is meant.
	NewCluster bool
}

// Start is how a server goes on.
type Start int

const (
	// First means that the cluster is new; what is missing of its keys is made.
	First Start = iota
	// Known means that the cluster exists; its keys must be there, and are checked.
	Known
	// Unmarked means that the datastore has objects and no identity, as after a server of a
	// version without them. It gets one if its objects belong to the authority of the directory.
	Unmarked
)

// Find tells how a server goes on. An error wraps ErrDatastore and names the next step.
func Find(s Situation) (Start, error) {
	other := "Start the server with the datastore that it had before (check --datastore-endpoint, and that the volume is mounted), or restore the datastore from a backup. To begin a new, empty cluster here, start it once with " + FlagNewCluster
	switch {
	case s.Stored != nil && s.File != nil && s.Stored.ID != s.File.ID && !s.NewCluster:
		return 0, fmt.Errorf("%w: %s belongs to the cluster %s, and %s to the cluster %s, which was last in %s. %s",
			ErrDatastore, s.Datastore, s.Stored.ID, s.Dir, s.File.ID, s.File.Datastore, other)
	case s.Stored != nil:
		return Known, nil
	case !s.Empty:
		return Unmarked, nil
	case s.NewCluster:
		return First, nil
	case s.File != nil:
		return 0, fmt.Errorf("%w: %s is empty, and %s belongs to the cluster %s, which was last in %s. %s",
			ErrDatastore, s.Datastore, s.Dir, s.File.ID, s.File.Datastore, other)
	case s.Used:
		return 0, fmt.Errorf("%w: %s is empty, and a server has run on %s before. %s", ErrDatastore, s.Datastore, s.Dir, other)
	default:
		return First, nil
	}
}

// Keys are what is in the data directory once nothing is missing.
type Keys struct {
	Authority string
	// Files has the fingerprints of the keys in each file.
	Files map[string][]string
}

// Check compares the keys of the data directory with those that a cluster was made with.
// A file may have further keys, as during a rotation; one that lacks a key is refused unless
// the administrator accepts that. The result is the identity to store.
func Check(dir string, stored Identity, profile string, have Keys, accept bool) (Identity, error) {
	if stored.Profile != profile {
		return Identity{}, fmt.Errorf("%w: it belongs to a server of the profile %q, and this is one of %q", ErrDatastore, stored.Profile, profile)
	}
	var problems []error
	if stored.Authority != have.Authority {
		problems = append(problems, fmt.Errorf("%s/pki/ca.crt is the authority %s, and the cluster was made with %s: every node and client would be locked out",
			dir, short(have.Authority), short(stored.Authority)))
	}
	for _, name := range slices.Sorted(maps.Keys(stored.Keys)) {
		for _, key := range stored.Keys[name] {
			if !slices.Contains(have.Files[name], key) {
				problems = append(problems, fmt.Errorf("%s/%s lacks the key %s, which the cluster was used with", dir, name, short(key)))
			}
		}
	}
	if len(problems) > 0 && !accept {
		return Identity{}, fmt.Errorf("%w:\n  %w\nRestore the files from a backup of the data directory. If they were replaced on purpose, start the server once with %s: what depends on the old keys (Secrets, tokens, certificates) is then lost",
			ErrKeys, joinLines(problems), FlagAcceptKeys)
	}
	stored.Authority, stored.Keys = have.Authority, have.Files
	return stored, nil
}

// CheckUnmarked is for a datastore without an identity: fits says whether its objects name
// the authority of the data directory.
func CheckUnmarked(s Situation, fits bool) error {
	if fits || s.NewCluster {
		return nil
	}
	return fmt.Errorf("%w: %s has objects of a cluster with another certificate authority than %s/pki/ca.crt. Restore the data directory of that cluster from a backup, or start the server with the datastore of this one. To use these objects with the keys of this directory, start it once with %s",
		ErrDatastore, s.Datastore, s.Dir, FlagNewCluster)
}

// Missing is the error for a file that should be there.
func Missing(path, consequence string) error {
	return fmt.Errorf("%w: %s is missing, and the datastore has the objects of a cluster: %s. Restore the file from a backup of the data directory. To have a new one made in its place, start the server once with %s",
		ErrKeys, path, consequence, FlagAcceptKeys)
}

// short is enough of a fingerprint to compare by eye.
func short(fingerprint string) string {
	if len(fingerprint) > 16 {
		return fingerprint[:16]
	}
	return fingerprint
}

type lines []error

func joinLines(problems []error) error { return lines(problems) }

func (l lines) Error() string {
	texts := make([]string, len(l))
	for i, p := range l {
		texts[i] = p.Error()
	}
	return strings.Join(texts, "\n  ")
}

func (l lines) Unwrap() []error { return l }

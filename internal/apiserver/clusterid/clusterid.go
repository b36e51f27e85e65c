// Package clusterid binds a data directory to the datastore of its cluster.
//
// A cluster has an identity: an ID that is created once, and the fingerprints of its
// certificate authority and keys. It is stored in the datastore and in the data directory, in
// the file [FileName]. A server with a datastore that lacks the directory's identity would
// serve an empty cluster, and every node would stop its instances. A server that creates a new
// key for an old datastore could not read the stored Secrets. This package distinguishes such
// starts from a first start, and refuses them.
//
// [Find] and [Check] are pure and make the decisions. [Store], [Read] and [Write] access the
// datastore and the file.
package clusterid

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Flags that a message may name as the next step.
const (
	FlagNewCluster = "--new-cluster"
	FlagAcceptKeys = "--accept-keys"
)

var (
	// ErrDatastore is returned when the datastore does not belong to the data directory.
	ErrDatastore = errors.New("the datastore does not belong to this data directory")
	// ErrKeys is returned when a key is missing, or is not the one on which the cluster's objects
	// and clients depend.
	ErrKeys = errors.New("the keys in the data directory do not belong to the cluster")
)

// Identity identifies a cluster.
type Identity struct {
	// ID is a random ID, created with the cluster.
	ID string `json:"id"`
	// Profile is the profile of the servers: cluster or kcp.
	Profile string `json:"profile"`
	// Authority is the fingerprint of the certificate authority.
	Authority string `json:"authority"`
	// Keys are the fingerprints of the keys in each file, by the file's name relative to the data
	// directory.
	Keys map[string][]string `json:"keys"`
}

// File is the content of the file in the data directory.
type File struct {
	Identity
	// Datastore describes the datastore in which the identity was last found, without
	// credentials.
	Datastore string `json:"datastore"`
}

// Situation is the state at the start of a server, before it has created any key.
type Situation struct {
	Dir       string // the data directory, for messages
	Datastore string // description without credentials
	// File is nil in a directory without an identity.
	File *File
	// Used means that a server without identities has run on the directory.
	Used bool
	// Stored is nil for a datastore without an identity.
	Stored *Identity
	// Empty means that the datastore has no objects.
	Empty bool
	// NewCluster means that the administrator wants another cluster.
	NewCluster bool
}

// Start is the kind of a server's start.
type Start int

const (
	// First means that the cluster is new. Missing keys are created.
	First Start = iota
	// Known means that the cluster exists. Its keys must exist and are checked.
	Known
	// Unmarked means that the datastore has objects and no identity, because an older version
	// without identities wrote it. It gets an identity if its objects belong to the authority of
	// the directory.
	Unmarked
)

// Find decides how a server starts. An error wraps ErrDatastore and contains the next step.
func Find(s Situation) (Start, error) {
	other := "Start the server with its former datastore (check --datastore-endpoint, and that the volume is mounted), or restore the datastore from a backup. To begin a new, empty cluster here, start the server once with " + FlagNewCluster
	switch {
	case s.Stored != nil && s.File != nil && s.Stored.ID != s.File.ID && !s.NewCluster:
		return 0, fmt.Errorf("%w: %s belongs to the cluster %s, and %s belongs to the cluster %s, whose last datastore was %s. %s",
			ErrDatastore, s.Datastore, s.Stored.ID, s.Dir, s.File.ID, s.File.Datastore, other)
	case s.Stored != nil:
		return Known, nil
	case !s.Empty:
		return Unmarked, nil
	case s.NewCluster:
		return First, nil
	case s.File != nil:
		return 0, fmt.Errorf("%w: %s is empty, and %s belongs to the cluster %s, whose last datastore was %s. %s",
			ErrDatastore, s.Datastore, s.Dir, s.File.ID, s.File.Datastore, other)
	case s.Used:
		return 0, fmt.Errorf("%w: %s is empty, and a server has already used %s. %s", ErrDatastore, s.Datastore, s.Dir, other)
	default:
		return First, nil
	}
}

// Keys are the keys in a complete data directory.
type Keys struct {
	Authority string
	// Files maps each file to the fingerprints of its keys.
	Files map[string][]string
}

// Check compares the keys of the data directory with those with which a cluster was created. A
// file may contain additional keys, such as during a rotation. A file that lacks a key is
// refused unless the administrator accepts that. The result is the identity to store.
func Check(dir string, stored Identity, profile string, have Keys, accept bool) (Identity, error) {
	if stored.Profile != profile {
		return Identity{}, fmt.Errorf("%w: it belongs to a server with the profile %q, and this server has the profile %q", ErrDatastore, stored.Profile, profile)
	}
	var problems []error
	if stored.Authority != have.Authority {
		problems = append(problems, fmt.Errorf("%s/pki/ca.crt is the certificate authority %s, and the cluster was created with %s: nodes and clients could not connect any more",
			dir, short(have.Authority), short(stored.Authority)))
	}
	for _, name := range slices.Sorted(maps.Keys(stored.Keys)) {
		for _, key := range stored.Keys[name] {
			if !slices.Contains(have.Files[name], key) {
				problems = append(problems, fmt.Errorf("%s/%s does not contain the key %s, which the cluster has used", dir, name, short(key)))
			}
		}
	}
	if len(problems) > 0 && !accept {
		return Identity{}, fmt.Errorf("%w:\n  %w\nRestore the files from a backup of the data directory. If they were replaced on purpose, start the server once with %s. Everything that depends on the old keys (Secrets, tokens, certificates) is then lost",
			ErrKeys, joinLines(problems), FlagAcceptKeys)
	}
	stored.Authority, stored.Keys = have.Authority, have.Files
	return stored, nil
}

// CheckUnmarked checks a datastore without an identity. fits reports whether its objects
// contain the authority of the data directory.
func CheckUnmarked(s Situation, fits bool) error {
	if fits || s.NewCluster {
		return nil
	}
	return fmt.Errorf("%w: %s contains objects of a cluster whose certificate authority is not %s/pki/ca.crt. Restore the data directory of that cluster from a backup, or start the server with the datastore of this one. To use these objects with the keys of this directory, start it once with %s",
		ErrDatastore, s.Datastore, s.Dir, FlagNewCluster)
}

// Missing returns the error for a missing file.
func Missing(path, consequence string) error {
	return fmt.Errorf("%w: %s is missing, and the datastore contains the objects of a cluster: %s. Restore the file from a backup of the data directory. To create a new one instead, start the server once with %s",
		ErrKeys, path, consequence, FlagAcceptKeys)
}

// short returns the part of a fingerprint that is long enough for people to compare.
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

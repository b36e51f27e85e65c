package riklet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"rik.dev/rik/internal/integrity"
	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/checkpoint"
	"rik.dev/rik/internal/riklet/join"
	"rik.dev/rik/internal/riklet/nodelock"
	"rik.dev/rik/internal/riklet/state"
)

// Files of the state directory.
const (
	// checkpointFile has what the node must not forget of its cluster.
	checkpointFile = "ledger.json"
	// InstancesDir is the directory of instances and their records.
	InstancesDir = "pods"
	recordsFile  = "pods.db"
)

// CheckFiles checks the state directory of a node that does not run, and changes nothing. It returns
// an error if the check could not run. The report has what it found.
func CheckFiles(stateDir string) (r integrity.Report, err error) {
	unlock, err := lockStopped(stateDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, unlock()) }()

	path := filepath.Join(stateDir, InstancesDir, recordsFile)
	records, broken, err := state.Check(path)
	if err == nil && len(broken) > 0 {
		err = fmt.Errorf("%w: the records of the instances %s. riklet repair removes only these records: the riklet then stops these instances and starts them again; their volumes on this node are lost",
			state.ErrDamaged, strings.Join(broken, ", "))
	}
	r.Add(path, "the records of instances", fmt.Sprintf("%d records", records), err)

	_, err = checkpoint.Open(filepath.Join(stateDir, checkpointFile))
	r.Add(filepath.Join(stateDir, checkpointFile), "the term and the fenced instances", "", err)

	detail, err := join.Check(filepath.Join(stateDir, join.File), time.Now())
	r.Add(filepath.Join(stateDir, join.File), "the node's certificate", detail, err)
	return r, nil
}

// RepairFiles removes the damaged records of instances, and saves them below the state directory. It
// returns the UIDs of the instances and the directory with their records.
func RepairFiles(stateDir string) (removed []string, dir string, err error) {
	unlock, err := lockStopped(stateDir)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	dir = filepath.Join(stateDir, "damaged", time.Now().UTC().Format("20060102T150405Z"))
	removed, err = state.Repair(filepath.Join(stateDir, InstancesDir, recordsFile), dir)
	return removed, dir, err
}

// lockStopped locks the state directory of a node that does not run, and does not create it.
func lockStopped(stateDir string) (func() error, error) {
	if _, err := os.Stat(stateDir); err != nil {
		return nil, fmt.Errorf("reading the state directory: %w: name another one with --state-dir", err)
	}
	lock, err := lockfile.Take(filepath.Join(stateDir, nodelock.LockFile))
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		return nil, fmt.Errorf("the state directory %s is used by %s: stop that riklet first; its instances continue to run", stateDir, held.By)
	}
	if err != nil {
		return nil, fmt.Errorf("locking the state directory: %w", err)
	}
	return lock.Release, nil
}

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/integrity"
	"rik.dev/rik/internal/pki"
)

// CheckFiles checks the data directory of a server that does not run, and its datastore. It needs
// the configuration's DataDir, the fields of the datastore, and Logger. It returns an error if the
// check could not run. The report has what it found.
func CheckFiles(ctx context.Context, cfg Config) (r integrity.Report, err error) {
	unlock, err := lockExisting(cfg.DataDir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if !hasServed(cfg) && !exists(filepath.Join(cfg.DataDir, clusterid.FileName)) && !exists(filepath.Join(cfg.DataDir, pkiDir)) {
		return r, fmt.Errorf("%s has no files of a server: name its data directory with --data-dir", cfg.DataDir)
	}

	file, err := clusterid.Read(cfg.DataDir)
	detail := ""
	switch {
	case err == nil && file == nil:
		detail = "missing: the server reads it from the datastore"
	case err == nil:
		detail = "ID " + file.ID
	}
	r.Add(filepath.Join(cfg.DataDir, clusterid.FileName), "the identity of the cluster", detail, err)

	c := &credentials{dir: cfg.DataDir}
	c.authority, err = pki.Load(c.path(pkiDir))
	detail = ""
	if err == nil {
		detail = c.authority.Warning(time.Now())
	}
	r.Add(c.path(pkiDir), "the certificate authority", detail, err)
	for name, content := range map[string]string{
		serviceAccountKeyFile: "the key that signs the tokens of service accounts",
		encryptionFile:        "the keys that encrypt Secrets",
	} {
		r.Add(c.path(name), content, "", c.checkKey(name, file))
	}

	store := cfg.datastore()
	objects, err := datastore.Check(ctx, store)
	r.Add(store.Dir, "the objects of the cluster", countObjects(objects), err)
	slices.SortStableFunc(r.Results, func(a, b integrity.Result) int { return compareProblems(a, b) })
	return r, nil
}

// checkKey reads a file with keys, and compares them with those of the cluster's identity.
func (c *credentials) checkKey(name string, file *clusterid.File) error {
	if _, err := os.Stat(c.path(name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return clusterid.Missing(c.path(name), "objects and tokens of the cluster depend on it")
		}
		return err
	}
	if err := pki.RefuseExposed(c.path(name)); err != nil {
		return err
	}
	have, err := c.fingerprintsOf(name)
	if err != nil || file == nil || file.Keys == nil {
		return err
	}
	for _, stored := range file.Keys[name] {
		if slices.Contains(have, stored) {
			return nil
		}
	}
	if len(file.Keys[name]) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s has none of the keys with which the cluster was created. Restore the file from a backup of the data directory", clusterid.ErrKeys, c.path(name))
}

// RepairFiles removes stored objects that do not match their checksums, and saves them below the
// data directory. It returns the file of each object by its key.
func RepairFiles(ctx context.Context, cfg Config) (removed map[string]string, err error) {
	unlock, err := lockExisting(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	dir := filepath.Join(cfg.DataDir, "damaged", time.Now().UTC().Format("20060102T150405Z"))
	return datastore.Repair(ctx, cfg.datastore(), dir)
}

// lockExisting locks a data directory, and does not create it.
func lockExisting(dir string) (func() error, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("reading the data directory: %w: name another one with --data-dir", err)
	}
	return lockDataDir(dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func countObjects(o checksum.Objects) string {
	text := fmt.Sprintf("%d objects match their checksums", o.Checked)
	if o.Unchecked > 0 {
		text += fmt.Sprintf(", %d have none", o.Unchecked)
	}
	if len(o.Damaged) > 0 {
		text += fmt.Sprintf(", %d are damaged", len(o.Damaged))
	}
	return text
}

func compareProblems(a, b integrity.Result) int {
	switch {
	case (a.Problem == "") == (b.Problem == ""):
		return 0
	case a.Problem != "":
		return -1
	}
	return 1
}

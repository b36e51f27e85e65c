package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/atomicfile"
)

// RecordFile is the file in a data directory that was restored, or begun to be restored.
const RecordFile = "restored.json"

// Record says from which backup a data directory was restored.
type Record struct {
	// Complete is false while the restore runs, and after it was interrupted.
	Complete bool `json:"complete"`
	// Backup is the ID of the backup, From its place, and Created its time.
	Backup  string    `json:"backup"`
	From    string    `json:"from"`
	Created time.Time `json:"created"`
	// Revision and Term are those of the backup.
	Revision int64 `json:"revision"`
	Term     int64 `json:"term"`
	// Floor is the revision above which the restored datastore continues.
	Floor int64 `json:"floor"`
	// Restored is the time of the restore.
	Restored time.Time `json:"restored"`
}

// ErrUnfinished is returned for a data directory or a datastore that contains a part of a backup.
var ErrUnfinished = errors.New("a restore was interrupted")

// ReadRecord returns the record of a data directory, or nil.
func ReadRecord(dir string) (*Record, error) {
	path := filepath.Join(dir, RecordFile)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of a restore: %w", err)
	}
	var r Record
	if err := json.Unmarshal(content, &r); err != nil || r.Backup == "" {
		return nil, fmt.Errorf("%s is damaged: if the server has been used since it was restored, remove the file; otherwise restore the backup again into an empty directory", path)
	}
	return &r, nil
}

// Unfinished returns ErrUnfinished if a restore into the data directory was interrupted.
func Unfinished(dir string) error {
	r, err := ReadRecord(dir)
	if err != nil || r == nil || r.Complete {
		return err
	}
	return fmt.Errorf("%w: %s contains a part of the backup %s. Start the server again with --restore %s to complete it. To give up, remove the files in %s, and the objects in an external datastore",
		ErrUnfinished, dir, r.Backup, r.From, dir)
}

func writeRecord(dir string, r Record) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the record of the restore: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, RecordFile), append(content, '\n')); err != nil {
		return fmt.Errorf("writing the record of the restore: %w", err)
	}
	return nil
}

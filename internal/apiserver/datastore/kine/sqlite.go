package kine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/sqlite"

	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/pause"
)

const (
	// checkedBytes is the size up to which a SQLite file is checked at the start. The check takes
	// about a second for 200 MB.
	checkedBytes = 1 << 30
	// sqliteConnections bounds the connections of kine, each of which has a cache of 2 MiB.
	// Without a limit each writer opens one, and closed connections leave holes in the C heap: 64
	// writers used 2.5 GiB. SQLite has only one writer at a time anyway.
	sqliteConnections = 10
	// vacuumInterval is the pause between two checks of the file's free pages and log.
	vacuumInterval = time.Minute
	// logInterval is the pause between two checks of the log's size, and logAtMost is the size in
	// bytes above which it is moved into the file and emptied. SQLite's own checkpoints do not empty
	// the log while there are readers, of which an API server always has some.
	logInterval = 2 * time.Second
	logAtMost   = 16 << 20
	// freeAtMost is the share of free pages, in percent, above which they are returned to the
	// disk.
	freeAtMost = 10
	// freePages is the number of free pages that are always kept.
	freePages = 256
	// pagesAtOnce is the number of pages returned to the disk in one transaction. Writers wait
	// for that transaction.
	pagesAtOnce = 500
	// vacuumPause is the pause that allows writers in between.
	vacuumPause = 20 * time.Millisecond
	// incremental is SQLite's number for the mode in which free pages can be returned one by one.
	incremental = 2
)

// errSQLite is returned for a file that cannot be used.
var errSQLite = errors.New("the SQLite file cannot be used")

// sqliteFile is the file of a sqlite:// source. It has its own connection, separate from
// kine's.
type sqliteFile struct {
	path   string
	params string
	logger *slog.Logger
	db     *sql.DB
}

// openSQLite checks the file of a source before kine uses it, and prepares it. kine itself
// tries for five minutes to open a file that is not a database, and ends the process when it
// reads a damaged page.
func openSQLite(ctx context.Context, cfg Config) (*sqliteFile, error) {
	rest := strings.TrimPrefix(cfg.Source, "sqlite://")
	path, params, hasParams := strings.Cut(rest, "?")
	own := path == ""
	if own {
		path = filepath.Join(cfg.Dir, "state.db")
	}
	if !hasParams {
		params = sqlite.DefaultParams
	}
	// The file is vacuumed here once. Later vacuums are incremental.
	f := &sqliteFile{path: path, params: params + "&_kine_disable_startup_vacuum=true", logger: cfg.Logger}
	if err := f.look(own); err != nil {
		return nil, err
	}
	driver := "sqlite" // the driver without cgo
	if slices.Contains(sql.Drivers(), "sqlite3") {
		driver = "sqlite3"
	}
	var err error
	if f.db, err = sql.Open(driver, path); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errSQLite, path, err)
	}
	f.db.SetMaxOpenConns(1) // settings apply to one connection
	if err := f.prepare(ctx, cfg.ServeDamaged); err != nil {
		return nil, errors.Join(err, f.db.Close())
	}
	return f, nil
}

func (f *sqliteFile) source() string { return "sqlite://" + f.path + "?" + f.params }

// look refuses a file that is not a database, and creates a missing file that only this user
// can read.
func (f *sqliteFile) look(own bool) error {
	info, err := os.Stat(f.path)
	wal, walErr := os.Stat(f.path + "-wal")
	switch {
	case (errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0) && walErr == nil && wal.Size() > 0:
		return fmt.Errorf("%w: %s is missing or empty, and %s contains its last writes. Restore both from the same backup. Without a backup, the cluster's objects are lost: move %s away and start once with --new-cluster", errSQLite, f.path, f.path+"-wal", f.path+"-wal")
	case errors.Is(err, fs.ErrNotExist):
		file, err := os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("creating the SQLite file: %w", err)
		}
		return file.Close()
	case err != nil:
		return fmt.Errorf("reading the SQLite file: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is not a file: use sqlite:// and the path of a file, or sqlite:// alone for a file in the data directory", errSQLite, f.path)
	}
	if err := f.checkHeader(info.Size()); err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		if !own {
			f.logger.Warn("other users can read the SQLite file with the objects of the cluster; run chmod 0600 on it", "file", f.path, "mode", mode.String())
			return nil
		}
		if err := os.Chmod(f.path, 0o600); err != nil {
			return fmt.Errorf("%s must be private: %w", f.path, err)
		}
	}
	return nil
}

// header is the first bytes of each SQLite file.
const header = "SQLite format 3\x00"

func (f *sqliteFile) checkHeader(size int64) error {
	if size == 0 {
		return nil // SQLite creates a database in it
	}
	file, err := os.Open(f.path)
	if err != nil {
		return fmt.Errorf("opening the SQLite file: %w", err)
	}
	defer file.Close()
	begin := make([]byte, len(header))
	if _, err := io.ReadFull(file, begin); err != nil || string(begin) != header {
		return f.damaged("it is not a SQLite database, or its first page is damaged")
	}
	return nil
}

func (f *sqliteFile) damaged(what string) error {
	return fmt.Errorf("%w: %s: %s. Restore it from a backup, without older -wal and -shm files next to it. Without a backup, the command .recover of the program sqlite3 may save a part. Otherwise the cluster's objects are lost: move the file away and start once with --new-cluster, which begins an empty cluster", errSQLite, f.path, what)
}

// prepare checks all pages and, unless serveDamaged, all objects. It then sets the mode in which free
// pages return to the disk.
func (f *sqliteFile) prepare(ctx context.Context, serveDamaged bool) error {
	if err := f.check(ctx); err != nil {
		return err
	}
	if !serveDamaged {
		if err := f.checkObjects(ctx); err != nil {
			return err
		}
	}
	var mode int
	if err := f.db.QueryRowContext(ctx, "PRAGMA auto_vacuum").Scan(&mode); err != nil {
		return f.damaged(err.Error())
	}
	// Bound the time that this connection waits for locks.
	if _, err := f.db.ExecContext(ctx, "PRAGMA busy_timeout = 2000"); err != nil {
		return fmt.Errorf("preparing the SQLite file %s: %w", f.path, err)
	}
	if mode == incremental {
		return nil
	}
	// The mode of a file changes only when the file is rewritten.
	_, err := f.db.ExecContext(ctx, fmt.Sprintf("PRAGMA auto_vacuum = %d", incremental))
	if err == nil {
		_, err = f.db.ExecContext(ctx, "VACUUM")
	}
	if err != nil {
		f.logger.Warn("the SQLite file does not shrink: rewriting it failed, which needs as much free space as its size", "file", f.path, "err", err)
	}
	return nil
}

func (f *sqliteFile) check(ctx context.Context) error {
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("reading the SQLite file: %w", err)
	}
	if info.Size() > checkedBytes {
		return nil
	}
	var says string
	err = f.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&says)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("checking the SQLite file %s: %w", f.path, context.Cause(ctx))
	case err != nil:
		return f.damaged(err.Error())
	case says != "ok":
		return f.damaged(strings.Join(strings.Fields(says), " "))
	}
	return nil
}

// checkObjects compares the newest revision of each object with its checksum. A database server has
// checksums of its own, and SQLite has none.
func (f *sqliteFile) checkObjects(ctx context.Context) error {
	info, err := os.Stat(f.path)
	if err != nil {
		return fmt.Errorf("reading the SQLite file: %w", err)
	}
	var tables int
	if err := f.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = 'kine'").Scan(&tables); err != nil {
		return f.damaged(err.Error())
	}
	if tables == 0 || info.Size() > checkedBytes {
		return nil
	}
	rows, err := f.db.QueryContext(ctx, `SELECT name, value FROM kine
		WHERE id IN (SELECT MAX(id) FROM kine GROUP BY name) AND deleted = 0 AND name LIKE '/registry/%'`)
	if err != nil {
		return fmt.Errorf("reading the objects in %s: %w", f.path, err)
	}
	defer rows.Close()
	var objects checksum.Objects
	for rows.Next() {
		var name string
		var value []byte
		if err := rows.Scan(&name, &value); err != nil {
			return fmt.Errorf("reading the objects in %s: %w", f.path, err)
		}
		objects.Add(name, value)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("reading the objects in %s: %w", f.path, err)
	}
	if err := objects.Err(); err != nil {
		return fmt.Errorf("%s: %w; next: %s", f.path, err, checksum.Next)
	}
	return nil
}

// keep returns free pages to the disk and truncates the log, until ctx ends.
func (f *sqliteFile) keep(ctx context.Context) {
	var vacuumed, problem time.Time
	for vacuumed = time.Now(); pause.For(ctx, logInterval); {
		var err error
		if time.Since(vacuumed) >= vacuumInterval {
			err = f.vacuum(ctx)
			vacuumed = time.Now()
		} else if log, statErr := os.Stat(f.path + "-wal"); statErr == nil && log.Size() > logAtMost {
			err = f.checkpoint(ctx)
		}
		if err == nil {
			problem = time.Time{}
			continue
		}
		if problem.IsZero() {
			problem = time.Now()
		}
		// A reader may be slow once. A failure that lasts lets the files grow.
		level := slog.LevelDebug
		if time.Since(problem) > vacuumInterval {
			level, problem = slog.LevelWarn, time.Now()
		}
		if ctx.Err() == nil {
			f.logger.Log(ctx, level, "shrinking the SQLite file failed", "file", f.path, "err", err)
		}
	}
}

func (f *sqliteFile) vacuum(ctx context.Context) error {
	for {
		var pages, free int
		if err := f.db.QueryRowContext(ctx, "SELECT page_count, freelist_count FROM pragma_page_count(), pragma_freelist_count()").Scan(&pages, &free); err != nil {
			return err
		}
		if free <= freePages || free*100 <= pages*freeAtMost {
			return f.checkpoint(ctx)
		}
		// Each row is a page, and all rows must be read.
		rows, err := f.db.QueryContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", pagesAtOnce))
		if err != nil {
			return err
		}
		for rows.Next() {
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		if !pause.For(ctx, vacuumPause) {
			return context.Cause(ctx)
		}
	}
}

// checkpoint moves the content of the log into the file, and empties the log.
func (f *sqliteFile) checkpoint(ctx context.Context) error {
	var busy, logged, moved int
	if err := f.db.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &logged, &moved); err != nil {
		return err
	}
	if busy != 0 {
		return errors.New("the write-ahead log is in use")
	}
	return nil
}

// close is called when kine has no connection any more. The file alone then contains all data.
func (f *sqliteFile) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := f.checkpoint(ctx)
	if err = errors.Join(err, f.db.Close()); err != nil {
		return fmt.Errorf("closing the SQLite file %s (keep its -wal file, which belongs to it): %w", f.path, err)
	}
	return nil
}

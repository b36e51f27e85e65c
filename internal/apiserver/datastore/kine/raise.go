package kine

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // registers pgx
)

// Raise makes the next revision of a stopped server's database higher than floor, and marks all
// revisions up to it as compacted. It changes nothing if the revision is higher already.
//
// kine's revisions are the IDs of its table's rows. The row that this adds is one of those with
// which kine fills gaps between IDs.
func Raise(ctx context.Context, cfg Config, floor int64) (err error) {
	db, postgres, err := openDatabase(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("raising the revision of the SQL datastore: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // without effect after Commit
	var last sql.NullInt64
	if err := tx.QueryRowContext(ctx, "SELECT MAX(id) FROM kine").Scan(&last); err != nil {
		return fmt.Errorf("reading the revision of the SQL datastore: %w", err)
	}
	if last.Int64 >= floor {
		return nil
	}
	// Numbers are written into the text, because databases differ in their parameters.
	statements := []string{
		fmt.Sprintf("INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease) VALUES(%d, 'gap-%d', 0, 1, 0, 0, 0)", floor, floor),
		fmt.Sprintf("UPDATE kine SET prev_revision = %d WHERE name = 'compact_rev_key'", floor),
	}
	if postgres { // the other databases raise their sequence with the row
		statements = append(statements, fmt.Sprintf("SELECT setval(pg_get_serial_sequence('kine', 'id'), %d)", floor))
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("raising the revision of the SQL datastore: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("raising the revision of the SQL datastore: %w", err)
	}
	return nil
}

// openDatabase opens the database of a stopped server, and reports whether it is PostgreSQL.
func openDatabase(ctx context.Context, cfg Config) (*sql.DB, bool, error) {
	switch {
	case strings.HasPrefix(cfg.Source, "sqlite://"):
		f, err := openSQLite(ctx, cfg)
		if err != nil {
			return nil, false, err
		}
		return f.db, false, nil
	case strings.HasPrefix(cfg.Source, "mysql://"):
		db, err := openMySQL(cfg)
		return db, false, err
	}
	source, err := postgresSource(cfg)
	if err != nil {
		return nil, true, err
	}
	db, err := sql.Open("pgx", source)
	if err != nil {
		return nil, true, fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	return db, true, nil
}

// postgresSource returns the data source that kine uses.
func postgresSource(cfg Config) (string, error) {
	_, rest, _ := strings.Cut(cfg.Source, "://")
	if rest == "" {
		rest = "postgres:postgres@localhost/"
	}
	u, err := url.Parse("postgres://" + rest)
	if err != nil {
		return "", errors.New("reading the data source for PostgreSQL failed (the cause is not shown, because it may contain the password)")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/kubernetes"
	}
	u.Path = strings.ToLower(u.Path)
	query := u.Query()
	for name, file := range map[string]string{"sslcert": cfg.CertFile, "sslkey": cfg.KeyFile, "sslrootcert": cfg.CAFile} {
		if file == "" || query.Has(name) {
			continue
		}
		query.Set(name, file)
		if !query.Has("sslmode") {
			query.Set("sslmode", "verify-full")
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

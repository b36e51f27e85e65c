package kine

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// mysqlDatabase is the database of kine's table if the source names none.
	mysqlDatabase = "kubernetes"
	// mysqlSocket and mysqlHost are kine's defaults for a source without an address.
	mysqlSocket = "root@unix(/var/run/mysqld/mysqld.sock)/"
	mysqlHost   = "root@tcp(127.0.0.1)/"
	// binary compares names byte by byte. kine's own table uses the default of the character set,
	// which treats upper and lower case as equal: a GET of one object returned another.
	binary = "ascii_bin"
)

// distinguishCase makes a MySQL or MariaDB table compare names byte by byte, as etcd does. It
// is called after kine has created its table, and also converts an older table.
func distinguishCase(ctx context.Context, cfg Config) (err error) {
	db, err := openMySQL(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var collation string
	err = db.QueryRowContext(ctx, "SELECT COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'kine' AND COLUMN_NAME = 'name'").Scan(&collation)
	if err != nil {
		return fmt.Errorf("reading how the database compares names: %w", err)
	}
	if collation == binary {
		return nil
	}
	began := time.Now()
	if _, err := db.ExecContext(ctx, "ALTER TABLE kine MODIFY COLUMN name VARCHAR(630) CHARACTER SET ascii COLLATE "+binary); err != nil {
		return fmt.Errorf("making the names in the database case-sensitive (they were %s): %w; the user of --datastore-endpoint needs the privilege ALTER on the table kine", collation, err)
	}
	cfg.Logger.Info("names in the database are case-sensitive now", "before", collation, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// openMySQL connects like kine.
func openMySQL(cfg Config) (*sql.DB, error) {
	dsn := strings.TrimPrefix(cfg.Source, "mysql://")
	secure := cfg.CAFile != "" || cfg.CertFile != ""
	if dsn == "" {
		dsn = mysqlSocket
		if secure {
			dsn = mysqlHost
		}
	}
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, errors.New("reading the data source for MySQL failed (the cause is not shown, because it may contain the password)")
	}
	if secure {
		config.TLSConfig = "kine" // registered by kine
	}
	config.DBName = cmp.Or(config.DBName, mysqlDatabase)
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to MySQL: %w", err)
	}
	return sql.OpenDB(connector), nil
}

// warnOfSettings logs a warning if a crash of the database can take back changes that watches
// have delivered: InnoDB shows a change to others before it is in the redo log, unless the binary
// log orders the commits. The revision of such a change is then used for another one.
func warnOfSettings(ctx context.Context, cfg Config) (err error) {
	db, err := openMySQL(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var binaryLog, syncLog, flush int
	if err := db.QueryRowContext(ctx, "SELECT @@log_bin, @@sync_binlog, @@innodb_flush_log_at_trx_commit").Scan(&binaryLog, &syncLog, &flush); err != nil {
		return fmt.Errorf("reading the settings of the database: %w", err)
	}
	if binaryLog != 1 || syncLog != 1 || flush != 1 {
		cfg.Logger.Warn("changes may be lost when the database crashes; next: set log_bin=binlog, sync_binlog=1 and innodb_flush_log_at_trx_commit=1 in its configuration",
			"log_bin", binaryLog, "sync_binlog", syncLog, "innodb_flush_log_at_trx_commit", flush)
	}
	return nil
}

// mysqlSize returns a function with the size of the table's file. kine's own query returns
// statistics, which stay the same until a tenth of the rows have changed. The function fails for
// a user without the privilege PROCESS. Its connection is closed when ctx ends.
func mysqlSize(ctx context.Context, cfg Config) (func(context.Context) (int64, error), error) {
	db, err := openMySQL(cfg)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	context.AfterFunc(ctx, func() { _ = db.Close() })
	return func(ctx context.Context) (size int64, err error) {
		for _, table := range []string{"INNODB_SYS_TABLESPACES", "INNODB_TABLESPACES"} { // MariaDB, MySQL
			err = db.QueryRowContext(ctx, "SELECT FILE_SIZE FROM information_schema."+table+" WHERE NAME = CONCAT(DATABASE(), '/kine')").Scan(&size)
			if err == nil {
				return size, nil
			}
		}
		return 0, err
	}, nil
}

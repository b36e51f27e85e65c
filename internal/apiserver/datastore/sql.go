package datastore

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"
)

// errDSN replaces the errors of parsers, which quote their input. That may contain a password.
var errDSN = errors.New("datastore endpoint cannot be parsed; percent-encode special characters in the password (the endpoint is not shown, because it may contain a password)")

// checkSQL refuses a data source that cannot be parsed, and a connection without TLS to another
// machine. Otherwise all data of the cluster would be sent unencrypted, and an attacker on the
// network could change it.
func (c Config) checkSQL() error {
	scheme, rest, _ := strings.Cut(c.Endpoint, "://")
	switch scheme {
	case "postgres", "postgresql":
		return c.checkPostgres(rest)
	case "mysql":
		return c.checkMySQL(rest)
	default:
		return nil
	}
}

const (
	wantsPostgresTLS = "set sslmode=verify-full, or --datastore-cafile"
	wantsMySQLTLS    = "set tls=true, or --datastore-cafile"
)

func (c Config) checkPostgres(source string) error {
	u, err := url.Parse("postgres://" + source)
	if err != nil {
		return errDSN
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return errDSN
	}
	hosts := strings.Split(u.Host, ",")
	for _, host := range query["host"] {
		hosts = append(hosts, strings.Split(host, ",")...)
	}
	// The default of libpq. kine itself sets verify-full if there is an authority or a
	// certificate.
	secure := c.CAFile != "" || c.CertFile != ""
	if mode := query.Get("sslmode"); mode != "" {
		secure = mode == "require" || mode == "verify-ca" || mode == "verify-full"
	}
	for _, host := range hosts {
		if !secure && !isLocal(host) {
			return plainError("postgres", host, wantsPostgresTLS)
		}
	}
	return nil
}

func (c Config) checkMySQL(source string) error {
	if source == "" {
		return nil // a local socket, or TLS with an authority
	}
	dsn, err := mysql.ParseDSN(source)
	if err != nil {
		return errDSN
	}
	secure := c.CAFile != "" || c.CertFile != ""
	switch dsn.TLSConfig {
	case "":
	case "false", "preferred":
		secure = false
	default:
		secure = true
	}
	if dsn.Net == "unix" || secure || isLocal(dsn.Addr) {
		return nil
	}
	return plainError("mysql", dsn.Addr, wantsMySQLTLS)
}

func plainError(scheme, host, next string) error {
	return fmt.Errorf("datastore endpoint %s://%s is on another machine, and the connection does not use TLS: %s", scheme, host, next)
}

// isLocal reports whether a host, with or without a port, is this machine: loopback, or the
// directory of a unix socket. An empty host is the driver's default, which is local.
func isLocal(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "" || strings.HasPrefix(host, "/") || isLoopback(strings.Trim(host, "[]"))
}

// withoutPassword removes the password of a data source from an error of the driver.
func withoutPassword(err error, endpoint string) error {
	if err == nil {
		return nil
	}
	_, rest, _ := strings.Cut(endpoint, "://")
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return err
	}
	_, password, _ := strings.Cut(rest[:at], ":")
	plain, unescapeErr := url.PathUnescape(password)
	if unescapeErr != nil {
		plain = password
	}
	text := err.Error()
	for _, secret := range []string{password, plain, url.QueryEscape(plain)} {
		if secret != "" && strings.Contains(text, secret) {
			return fmt.Errorf("%w: the cause is not shown, because it contains the password", errDriver)
		}
	}
	return err
}

var errDriver = errors.New("connecting to the database failed")

// scheme returns the scheme of a SQL data source.
func (c Config) scheme() string {
	scheme, _, _ := strings.Cut(c.Endpoint, "://")
	if scheme == "postgresql" {
		return "postgres"
	}
	return scheme
}

package facts

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"rik.dev/rik/internal/doctor"
	"rik.dev/rik/internal/pki"
	"rik.dev/rik/internal/riklet/join"
)

// pkiDir is the directory of certificates in the data directory.
const pkiDir = "pki"

// certificates returns the certificates of this machine, and the problems of their keys.
func (g *gatherer) certificates() (all []doctor.Certificate, exposed map[string]string) {
	exposed = map[string]string{}
	refuse := func(path string) {
		if err := pki.RefuseExposed(path); errors.Is(err, pki.ErrExposed) {
			exposed[path] = err.Error()
		}
	}
	if g.cfg.DataDir != "" {
		for name, kind := range map[string]doctor.CertificateKind{
			pki.CertificateFile: doctor.KindAuthority, "client-ca.crt": doctor.KindAuthority, "server.crt": doctor.KindServer, "admin.crt": doctor.KindAdmin,
		} {
			path := filepath.Join(g.cfg.DataDir, pkiDir, name)
			if c, found := certificate(path, kind); found {
				c.Unit, c.Settings, c.Automatic = "rik", firstFile("/etc/rik/server.env", "/etc/default/rik"), kind != doctor.KindAuthority
				all = append(all, c)
			}
		}
		keys, _ := filepath.Glob(filepath.Join(g.cfg.DataDir, pkiDir, "*.key")) // only a wrong pattern is an error
		for _, path := range keys {
			refuse(path)
		}
	}
	identity := filepath.Join(g.cfg.StateDir, join.File)
	if c, found := certificate(identity, doctor.KindNode); found {
		c.Unit, c.Settings, c.Automatic = "riklet", firstFile("/etc/rik/agent.env", "/etc/default/riklet"), true
		all = append(all, c)
		refuse(identity)
	}
	return all, exposed
}

// firstFile returns the first file that exists, or else the last one.
func firstFile(paths ...string) string {
	for _, path := range paths {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return paths[len(paths)-1]
}

// certificate reads the first certificate of a file. found is false if the file does not exist.
func certificate(path string, kind doctor.CertificateKind) (c doctor.Certificate, found bool) {
	c = doctor.Certificate{Path: path, Kind: kind}
	parsed, err := readCertificates(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c, false
	case errors.Is(err, fs.ErrPermission):
		return c, false // host-root reports it
	case err != nil:
		c.Err = err.Error()
	default:
		c.NotBefore, c.NotAfter, c.Names = parsed[0].NotBefore, parsed[0].NotAfter, namesOf(parsed[0])
	}
	return c, true
}

var errNoCertificate = errors.New("the file contains no certificate")

// readCertificates returns the certificates of a file, at least one.
func readCertificates(path string) ([]*x509.Certificate, error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errNoCertificate
	}
	return all, nil
}

// namesOf returns the DNS names and addresses of a certificate.
func namesOf(c *x509.Certificate) []string {
	names := append([]string{}, c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// authorities returns the authorities that this machine trusts: those of its node or of its control
// plane. It returns nil if it has not joined.
func (g *gatherer) authorities() *x509.CertPool {
	var found []*x509.Certificate
	if all, err := readCertificates(filepath.Join(g.cfg.StateDir, join.File)); err == nil {
		found = append(found, all[1:]...) // the first is the node's own
	}
	if g.cfg.DataDir != "" {
		if all, err := readCertificates(filepath.Join(g.cfg.DataDir, pkiDir, pki.CertificateFile)); err == nil {
			found = append(found, all...)
		}
	}
	if len(found) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	for _, c := range found {
		pool.AddCert(c)
	}
	return pool
}

// excerptOfError shortens the errors of package net, which repeat the address.
func excerptOfError(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": connect: "); i >= 0 {
		return text[i+len(": connect: "):]
	}
	return text
}

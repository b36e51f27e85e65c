package rikcluster

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"rik.dev/rik/internal/ociimage"
)

// Hello writes an image of examples/hello and returns its reference.
func (c *Cluster) Hello() string {
	c.tb.Helper()
	return c.Image("hello", ociimage.Spec{
		Files: map[string]ociimage.File{"hello": {Source: c.HelloProgram()}}, Entrypoint: []string{"/hello"},
	})
}

// HelloProgram returns the path of examples/hello, which make testprograms builds.
func (c *Cluster) HelloProgram() string { return filepath.Join(c.Bin, "hello") }

// Tools are the same files in the formats that the kinds of workload accept: busybox and
// examples/hello in bin.
type Tools struct {
	Image     string // reference of an OCI image
	Directory string // of the node, readable by all
	TarGz     string // path of an archive
	Ext4      string // path of a file system image
}

// Tools writes them. The archive and the file system image are in the directory into. Files
// outside it are removed at the end of the test.
func (c *Cluster) Tools(into string) Tools {
	c.tb.Helper()
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		c.tb.Fatal(err)
	}
	spec.Files["bin/hello"] = ociimage.File{Source: c.HelloProgram()}
	t := Tools{
		Image: c.Image("tools", spec), Directory: c.publicDir(),
		TarGz: filepath.Join(into, "tools.tar.gz"), Ext4: filepath.Join(into, "tools.ext4"),
	}
	c.writeTree(t.Directory, spec.Files)
	for _, command := range [][]string{
		{"chmod", "-R", "go+rX", t.Directory}, // independently of the umask, see Main
		{"tar", "-C", t.Directory, "-czf", t.TarGz, "."},
		{"mkfs.ext4", "-q", "-d", t.Directory, t.Ext4, "64M"},
	} {
		if out := Command(c.tb, command[0], command[1:]...); out.Err != nil {
			c.tb.Fatalf("%v: %v", command, out.Err)
		}
	}
	return t
}

// publicDir returns a directory that any user of this machine may enter, unlike the cluster's
// directory.
func (c *Cluster) publicDir() string {
	c.tb.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "rik-tools-")
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		c.tb.Fatal(err)
	}
	return dir
}

// writeTree writes the files of a layer into a directory.
func (c *Cluster) writeTree(dir string, files map[string]ociimage.File) {
	c.tb.Helper()
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			c.tb.Fatal(err)
		}
		if err := writeEntry(path, f); err != nil {
			c.tb.Fatal(err)
		}
	}
}

func writeEntry(path string, f ociimage.File) error {
	switch {
	case f.Dir:
		return os.MkdirAll(path, 0o755)
	case f.Link != "":
		return os.Symlink(f.Link, path)
	case f.Source != "":
		content, err := os.ReadFile(f.Source)
		if err != nil {
			return err
		}
		return os.WriteFile(path, content, 0o755)
	default:
		return os.WriteFile(path, f.Content, 0o644)
	}
}

// Site is an https server on the loopback. For a cluster whose only network is the loopback, it
// represents the Internet.
type Site struct {
	Dir string // directory of its files
	URL string
}

// NewSite starts a Site. Clusters that are started later trust its certificate and no others.
func NewSite(t *testing.T) Site {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewTLSServer(http.FileServer(http.Dir(dir)))
	t.Cleanup(server.Close)
	authority := filepath.Join(t.TempDir(), "authority.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", authority)
	return Site{Dir: dir, URL: server.URL}
}

package rikcluster

import (
	"os"
	"path/filepath"

	"rik.dev/rik/internal/ociimage"
)

// Busybox writes an image with Debian's static busybox into the cluster's directory and returns
// its reference.
func (c *Cluster) Busybox() string {
	c.tb.Helper()
	spec, err := ociimage.BusyboxSpec()
	if err != nil {
		c.tb.Fatal(err)
	}
	return c.Image("busybox", spec)
}

// Image writes an image into the cluster's directory and returns its reference.
func (c *Cluster) Image(name string, spec ociimage.Spec) string {
	c.tb.Helper()
	dir := filepath.Join(c.Dir, "images", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		c.tb.Fatal(err)
	}
	if _, err := ociimage.Write(dir, "v1", spec); err != nil {
		c.tb.Fatal(err)
	}
	return "oci:" + dir + ":v1"
}

// Manifest returns a Workload with one container, as YAML. The command is a shell script for
// busybox.
func Manifest(name, image, script, extra string) string {
	return `apiVersion: rik.dev/v1alpha1
kind: Workload
metadata:
  name: ` + name + `
spec:
  terminationGracePeriodSeconds: 2
` + extra + `
  containers:
    - name: main
      image: ` + image + `
      command: ["/bin/sh", "-c", ` + quote(script) + `]
`
}

// quote quotes a text without control characters for YAML.
func quote(s string) string {
	out := []byte{'"'}
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			out = append(out, '\\')
		}
		out = append(out, s[i])
	}
	return string(append(out, '"'))
}

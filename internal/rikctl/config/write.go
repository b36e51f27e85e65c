package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/atomicfile"
)

// With returns the file with the cluster added. It replaces a cluster of the same name. The
// first cluster of a file is also the one in use.
func (f File) With(c Cluster) File {
	f.Clusters = slices.Clone(f.known())
	at := slices.IndexFunc(f.Clusters, func(o Cluster) bool { return o.Name == c.Name })
	if at < 0 {
		f.Clusters = append(f.Clusters, c)
	} else {
		f.Clusters[at] = c
	}
	if f.Cluster.Name == "" || f.Cluster.Name == c.Name {
		f.Cluster = c
	}
	return f
}

// Using returns the file with another one of its clusters in use.
func (f File) Using(name string) (File, error) {
	known := f.known()
	at := slices.IndexFunc(known, func(o Cluster) bool { return o.Name == name })
	if at < 0 {
		return f, fmt.Errorf("cluster %q is not in the configuration; it has %q", name, f.Names())
	}
	f.Clusters = known
	f.Cluster = known[at]
	return f, nil
}

// Names returns the names of all clusters of the file.
func (f File) Names() []string {
	names := []string{}
	for _, c := range f.known() {
		names = append(names, c.Name)
	}
	return names
}

// known returns the list of clusters. It includes the one in use, even if the list of the file
// lacks it.
func (f File) known() []Cluster {
	has := slices.ContainsFunc(f.Clusters, func(o Cluster) bool { return o.Name == f.Cluster.Name })
	if f.Cluster.Name == "" || has {
		return f.Clusters
	}
	return append([]Cluster{f.Cluster}, f.Clusters...)
}

// Redacted returns the file without its secrets.
func (f File) Redacted() File {
	f.Clusters = slices.Clone(f.Clusters)
	for i := range f.Clusters {
		f.Clusters[i] = redact(f.Clusters[i])
	}
	f.Cluster = redact(f.Cluster)
	return f
}

func redact(c Cluster) Cluster {
	for _, secret := range []*string{&c.ClientKey, &c.Token} {
		if *secret != "" && !isPath(*secret) {
			*secret = redacted
		}
	}
	for _, long := range []*string{&c.CertificateAuthority, &c.ClientCertificate} {
		if *long != "" && !isPath(*long) {
			*long = "DATA+OMITTED"
		}
	}
	return c
}

// isPath accepts few forms on purpose, so that a possible secret is never shown.
func isPath(s string) bool {
	return filepath.IsAbs(s) && len(s) < 256
}

// Write replaces the file atomically. Only the user may read the file.
func Write(path string, file File) error {
	data, err := yaml.Marshal(file)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the directory of the configuration: %w", err)
	}
	if err := atomicfile.Write(path, data); err != nil {
		return fmt.Errorf("writing the configuration: %w", err)
	}
	return nil
}

// redacted replaces secrets in output.
const redacted = "REDACTED"

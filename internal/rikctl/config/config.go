// Package config finds and reads rikctl's configuration: the address of a cluster and the user's
// credentials for it.
//
// A file has the published form, as JSON or YAML: cluster: {name, server}. The cluster may also
// have certificateAuthority, clientCertificate, clientKey and token, each as a path or as the
// content itself. More clusters can be listed under clusters; "rikctl config use" selects one of
// them.
//
// Find depends only on its Source, so that tests can cover every search order and every error
// without the machine's files.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/clientcmd/api"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/strictdecode"
)

// The environment variables that Find reads.
const (
	EnvPath   = "RIKCONFIG"
	EnvName   = "RIK_CLUSTER_NAME"
	EnvServer = "RIK_CLUSTER_SERVER"
	// EnvData is the data directory of the server on this machine.
	EnvData = "DATABASE_LOCATION"
)

// DefaultData is the default data directory of a server.
const DefaultData = "/var/lib/rik/data"

// anyServer is a name in the certificates of all servers of a cluster.
const anyServer = "kubernetes.default.svc"

// Cluster holds the address of one cluster and the user's credentials for it.
type Cluster struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	// Servers are the URLs of all servers of the cluster, for when Server does not answer. A server
	// writes the list into its own configuration.
	Servers []string `json:"servers,omitempty"`
	// CertificateAuthority, ClientCertificate and ClientKey are each PEM, PEM in base64, or a
	// path. A relative path starts at the file's directory.
	CertificateAuthority string `json:"certificateAuthority,omitempty"`
	ClientCertificate    string `json:"clientCertificate,omitempty"`
	ClientKey            string `json:"clientKey,omitempty"`
	// Token is the token itself, or a path that starts with /, ./ or ~/.
	Token string `json:"token,omitempty"`
}

// File is the content of a configuration file.
type File struct {
	Cluster Cluster `json:"cluster"`
	// Clusters are those that "config use" can select; Cluster is the one in use.
	Clusters []Cluster `json:"clusters,omitempty"`
}

// Found is a configuration and its origin.
type Found struct {
	// Path of the file; empty if the server comes from the environment alone.
	Path string
	File File
	// Client is the configuration in the form of Kubernetes' clients, with the contents of all
	// files that it names.
	Client *api.Config
}

// Origin names the file that the configuration is from, or the environment variable.
func (f *Found) Origin() string {
	if f.Path == "" {
		return "$" + EnvServer
	}
	return f.Path
}

// Source holds everything that Find reads.
type Source struct {
	// Flag is the value of --config.
	Flag string
	// Getenv reads the environment.
	Getenv func(string) string
	// Home is the user's home directory; empty for a user without one.
	Home string
	// ReadFile reads a file.
	ReadFile func(string) ([]byte, error)
}

// Machine returns the Source of this process.
func Machine(flag string) Source {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // a service may have no home; the other places still count
	}
	return Source{Flag: flag, Getenv: os.Getenv, Home: home, ReadFile: os.ReadFile}
}

// UserPath returns the path of the user's configuration.
func (s Source) UserPath() string {
	if s.Home == "" {
		return ""
	}
	return filepath.Join(s.Home, ".rik", "config.yaml")
}

// SystemPath returns the path of the file that the server of this machine writes for its
// administrator.
func (s Source) SystemPath() string {
	dir := s.Getenv(EnvData)
	if dir == "" {
		dir = DefaultData
	}
	return filepath.Join(dir, "config.yaml")
}

// serverFiles are the files next to the configuration that a server wrote.
var serverFiles = []string{"admin.kubeconfig", "profile", "encryption.yaml"}

// IsServers reports whether a file is the configuration of a server, in any data directory. The
// server rewrites that file at every start.
func (s Source) IsServers(path string) bool {
	if filepath.Clean(path) == filepath.Clean(s.SystemPath()) {
		return true
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if filepath.Base(path) != filepath.Base(s.SystemPath()) {
		return false
	}
	for _, name := range serverFiles {
		if _, err := s.ReadFile(filepath.Join(filepath.Dir(path), name)); errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}

// IsPublished reports whether a cluster has only a name and a URL, like in the published
// clients. A server with users refuses such a client.
func (c Cluster) IsPublished() bool {
	return c.CertificateAuthority == "" && c.ClientCertificate == "" && c.ClientKey == "" && c.Token == ""
}

// place is one location in the search order.
type place struct {
	label string
	path  string
	// must is set for a file that the user named. Its absence is an error.
	must bool
}

func (s Source) places() []place {
	return []place{
		{label: "--config", path: s.Flag, must: true},
		{label: "$" + EnvPath, path: s.Getenv(EnvPath), must: true},
		{label: "~/.rik/config.yaml", path: s.UserPath()},
		{label: "the server of this machine", path: s.SystemPath()},
	}
}

// Find reads the first configuration in the order --config, $RIKCONFIG, ~/.rik/config.yaml, the
// server's own. A file that the user named and that cannot be read ends the search with an
// error. So does a file that exists but that the user may not read.
func Find(s Source) (*Found, error) {
	missing := &MissingError{}
	for _, p := range s.places() {
		if p.path == "" {
			missing.Looked = append(missing.Looked, p.label+": not set")
			continue
		}
		data, err := s.ReadFile(p.path)
		switch {
		case err == nil:
			return s.read(p.path, data)
		case errors.Is(err, fs.ErrPermission):
			return s.denied(p, err)
		case p.must || !errors.Is(err, fs.ErrNotExist):
			return nil, unreadable(p, err)
		}
		missing.Looked = append(missing.Looked, fmt.Sprintf("%s: %s does not exist", p.label, p.path))
	}
	if s.Getenv(EnvServer) != "" {
		return s.finish("", File{})
	}
	return nil, missing
}

// denied reports a file that the user may not read, unless that is the server's file and the
// environment names a server.
func (s Source) denied(p place, err error) (*Found, error) {
	if !p.must && s.Getenv(EnvServer) != "" {
		return s.finish("", File{})
	}
	return nil, &DeniedError{Path: p.path, Target: s.UserPath(), Err: err}
}

func (s Source) read(path string, data []byte) (*Found, error) {
	file, err := Decode(path, data)
	if err != nil {
		return nil, err
	}
	return s.finish(path, file)
}

// Decode parses the content of a file. Its errors are WrongErrors. An unknown key is an error
// with the path of the key.
func Decode(path string, data []byte) (File, error) {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return File{}, wrong(path, form, fmt.Errorf("neither YAML nor JSON: %w", err))
	}
	if isKubeconfig(asJSON) {
		return File{}, wrong(path, fmt.Sprintf("\"--kubeconfig %s\" uses it; %s", path, form), errors.New("the file is a kubeconfig"))
	}
	var file File
	if err := strictdecode.Join(redactErrors(strictdecode.Check(asJSON, &file))); err != nil {
		return File{}, wrong(path, form, err)
	}
	problems, err := kjson.UnmarshalStrict(asJSON, &file)
	if err != nil {
		return File{}, wrong(path, form, err)
	}
	if len(problems) > 0 {
		return File{}, wrong(path, form, errors.Join(problems...))
	}
	return file, nil
}

// redactErrors removes secrets from messages.
func redactErrors(misfits field.ErrorList) field.ErrorList {
	for _, err := range misfits {
		if strings.HasSuffix(err.Field, ".token") || strings.HasSuffix(err.Field, ".clientKey") {
			err.BadValue, err.Detail = redacted, "must be text: put it in quotes"
		}
	}
	return misfits
}

// isKubeconfig recognizes a kubeconfig, which a user of Kubernetes may name by mistake.
func isKubeconfig(asJSON []byte) bool {
	var head struct {
		Kind string `json:"kind"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &head) == nil && head.Kind == "Config"
}

// finish applies the overrides of the environment and builds the client configuration.
func (s Source) finish(path string, file File) (*Found, error) {
	c := file.Cluster
	if name := s.Getenv(EnvName); name != "" {
		c.Name = name
	}
	where := path
	if server := s.Getenv(EnvServer); server != "" {
		c.Server, where = server, "$"+EnvServer
	}
	if c.Name == "" {
		c.Name = "rik.local" // the name that the published client uses
	}
	if err := CheckServer(c.Server); err != nil {
		return nil, wrong(where, nextForServer(where), fmt.Errorf("cluster.server: %w", err))
	}
	for i, other := range c.Servers {
		if err := CheckServer(other); err != nil {
			return nil, wrong(path, "correct it in "+path, fmt.Errorf("cluster.servers[%d]: %w", i, err))
		}
	}
	client, err := s.client(c, filepath.Dir(path))
	if err != nil {
		return nil, wrong(path, "correct it in "+path+"; relative paths in it start at its directory", err)
	}
	file.Cluster = c
	return &Found{Path: path, File: file, Client: client}, nil
}

// CheckServer returns an error with the reason if the text is not the URL of a server.
func CheckServer(server string) error {
	if server == "" {
		return errors.New("required: the URL of the server, such as https://127.0.0.1:5000")
	}
	u, err := url.Parse(server)
	if err != nil {
		return err
	}
	if (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
		return fmt.Errorf("%q is not an http or https URL, such as https://127.0.0.1:5000", server)
	}
	return nil
}

// client converts the cluster to the form of Kubernetes' clients.
func (s Source) client(c Cluster, dir string) (*api.Config, error) {
	ca, err := s.material(c.CertificateAuthority, dir, "cluster.certificateAuthority")
	if err != nil {
		return nil, err
	}
	certificate, err := s.material(c.ClientCertificate, dir, "cluster.clientCertificate")
	if err != nil {
		return nil, err
	}
	key, err := s.material(c.ClientKey, dir, "cluster.clientKey")
	if err != nil {
		return nil, err
	}
	token, err := s.token(c.Token, dir)
	if err != nil {
		return nil, err
	}
	if (len(certificate) > 0) != (len(key) > 0) {
		return nil, errors.New("cluster.clientCertificate and cluster.clientKey must both be set")
	}
	out := api.NewConfig()
	cluster := api.NewCluster()
	cluster.Server, cluster.CertificateAuthorityData = c.Server, ca
	if len(c.Servers) > 0 {
		cluster.TLSServerName = anyServer
	}
	user := api.NewAuthInfo()
	user.ClientCertificateData, user.ClientKeyData, user.Token = certificate, key, token
	context := api.NewContext()
	context.Cluster, context.AuthInfo = c.Name, c.Name
	out.Clusters[c.Name], out.AuthInfos[c.Name], out.Contexts[c.Name] = cluster, user, context
	out.CurrentContext = c.Name
	return out, nil
}

func (s Source) resolve(path, dir string) string {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		return filepath.Join(s.Home, rest)
	}
	if !filepath.IsAbs(path) {
		return filepath.Join(dir, path)
	}
	return path
}

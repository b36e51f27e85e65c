// Package config finds and reads the configuration that says which cluster
// rikctl speaks to.
//
// A file has the form of the papers, JSON or YAML: cluster: {name, server},
// with certificateAuthority, clientCertificate, clientKey and token beside
// them, each a path or the content itself. Other clusters may be kept under
// clusters, from which "rikctl config use" takes one.
//
// Find is a function of its Source alone, so that every order and every error
// can be tested without touching the machine.
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

// The environment variables that are read.
const (
	EnvPath   = "RIKCONFIG"
	EnvName   = "RIK_CLUSTER_NAME"
	EnvServer = "RIK_CLUSTER_SERVER"
	// EnvData is where the server of this machine keeps its data.
	EnvData = "DATABASE_LOCATION"
)

// DefaultData is where a server keeps its data unless told otherwise.
const DefaultData = "/var/lib/rik/data"

// Cluster says how to reach one cluster and as whom.
type Cluster struct {
	Name   string `json:"name"`
	Server string `json:"server"`
	// CertificateAuthority, ClientCertificate and ClientKey are PEM, PEM in
	// base64, or a path; a relative path starts at the file's directory.
	CertificateAuthority string `json:"certificateAuthority,omitempty"`
	ClientCertificate    string `json:"clientCertificate,omitempty"`
	ClientKey            string `json:"clientKey,omitempty"`
	// Token is the token itself, or a path that starts with /, ./ or ~/.
	Token string `json:"token,omitempty"`
}

// File is the content of a configuration file.
type File struct {
	Cluster Cluster `json:"cluster"`
	// Clusters are kept for "config use"; Cluster is the one in use.
	Clusters []Cluster `json:"clusters,omitempty"`
}

// Found is a configuration and where it is from.
type Found struct {
	// Path of the file; empty when the environment alone gave the server.
	Path string
	File File
	// Client is the configuration in the form that Kubernetes' clients take,
	// with all that was given as paths read.
	Client *api.Config
}

// Source is what Find looks at.
type Source struct {
	// Flag is the value of --config.
	Flag string
	// Getenv reads the environment.
	Getenv func(string) string
	// Home is the user's home directory; empty if there is none.
	Home string
	// ReadFile reads a file.
	ReadFile func(string) ([]byte, error)
}

// Machine is the Source of the process that runs.
func Machine(flag string) Source {
	home, err := os.UserHomeDir()
	if err != nil {
		home = "" // A service may have none; the other places still count.
	}
	return Source{Flag: flag, Getenv: os.Getenv, Home: home, ReadFile: os.ReadFile}
}

// UserPath is the file of the user.
func (s Source) UserPath() string {
	if s.Home == "" {
		return ""
	}
	return filepath.Join(s.Home, ".rik", "config.yaml")
}

// SystemPath is the file that the server of this machine writes for its
// administrator.
func (s Source) SystemPath() string {
	dir := s.Getenv(EnvData)
	if dir == "" {
		dir = DefaultData
	}
	return filepath.Join(dir, "config.yaml")
}

// serverFiles are beside the configuration that a server wrote.
var serverFiles = []string{"admin.kubeconfig", "profile", "encryption.yaml"}

// IsServers says whether a file is the configuration of a server, in whatever data
// directory: the server writes it anew at every start.
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

// IsPublished says whether a cluster is as the published clients have it: a name and a
// URL. No server with users lets that in.
func (c Cluster) IsPublished() bool {
	return c.CertificateAuthority == "" && c.ClientCertificate == "" && c.ClientKey == "" && c.Token == ""
}

// place is one location in the order of search.
type place struct {
	label string
	path  string
	// must is set for a file that the user named: its absence is an error.
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

// Find reads the first configuration in the order --config, $RIKCONFIG,
// ~/.rik/config.yaml, the server's own. A file that was named and cannot be
// read ends the search; so does one that exists and may not be read.
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

// denied reports a file that may not be read, unless it is the server's and the
// environment names a server instead.
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

// Decode reads a file's content. Its errors are WrongErrors; unknown keys are
// errors with their path.
func Decode(path string, data []byte) (File, error) {
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return File{}, wrong(path, form, fmt.Errorf("neither YAML nor JSON: %w", err))
	}
	if isKubeconfig(asJSON) {
		return File{}, wrong(path, fmt.Sprintf("\"--kubeconfig %s\" uses it; %s", path, form), errors.New("it is a kubeconfig, which has another form"))
	}
	var file File
	if err := strictdecode.Join(discreet(strictdecode.Check(asJSON, &file))); err != nil {
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

// discreet keeps secrets out of messages.
func discreet(misfits field.ErrorList) field.ErrorList {
	for _, err := range misfits {
		if strings.HasSuffix(err.Field, ".token") || strings.HasSuffix(err.Field, ".clientKey") {
			err.BadValue, err.Detail = redacted, "must be text: put it in quotes"
		}
	}
	return misfits
}

// isKubeconfig recognizes the file that users of Kubernetes have at hand.
func isKubeconfig(asJSON []byte) bool {
	var head struct {
		Kind string `json:"kind"`
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(asJSON, &head) == nil && head.Kind == "Config"
}

// finish applies the environment's overrides and makes the client configuration.
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
		c.Name = "rik.local" // The name that the published client gave.
	}
	if err := CheckServer(c.Server); err != nil {
		return nil, wrong(where, nextForServer(where), fmt.Errorf("cluster.server: %w", err))
	}
	client, err := s.client(c, filepath.Dir(path))
	if err != nil {
		return nil, wrong(path, "correct it in "+path+": paths in it that are not absolute start at its directory", err)
	}
	file.Cluster = c
	return &Found{Path: path, File: file, Client: client}, nil
}

// CheckServer says why something is not the URL of a server.
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

// client renders the cluster for Kubernetes' clients.
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
		return nil, errors.New("cluster.clientCertificate and cluster.clientKey go together: one of them is missing")
	}
	out := api.NewConfig()
	cluster := api.NewCluster()
	cluster.Server, cluster.CertificateAuthorityData = c.Server, ca
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

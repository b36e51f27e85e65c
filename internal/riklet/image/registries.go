package image

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Names of the files in Config.RegistriesDir.
const (
	RegistriesFile = "registries.conf" // containers-registries.conf(5)
	AuthFile       = "auth.json"       // containers-auth.json(5)
	CertsDir       = "certs.d"         // containers-certs.d(5)
)

// withRegistries adds the files with settings for registries to a request.
func (c Config) withRegistries(req wire.Request) wire.Request {
	req.RegistriesConf, req.AuthFile, req.CertDir = c.RegistriesConf, c.AuthFile, c.CertDir
	for name, path := range map[string]*string{RegistriesFile: &req.RegistriesConf, AuthFile: &req.AuthFile, CertsDir: &req.CertDir} {
		if file := filepath.Join(c.RegistriesDir, name); *path == "" && c.RegistriesDir != "" && exists(file) {
			*path = file
		}
	}
	return req
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// CheckRegistries validates the files with settings for registries. The error has every problem, with
// the file and the line. Of the configuration, it uses the unpacker and the fields of those files.
func CheckRegistries(ctx context.Context, c Config) error {
	req := c.withRegistries(wire.Request{Check: true, Limits: c.Limits.WithDefaults()})
	if req.RegistriesConf == "" && req.AuthFile == "" && req.CertDir == "" {
		return nil
	}
	_, err := runUnpacker(ctx, c.Unpacker, "/", req.Limits.Time, func(stdin io.Writer, stdout io.Reader) (*wire.Result, error) {
		return ask(nil, req, stdin, stdout)
	})
	return err
}

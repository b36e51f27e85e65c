package fetch

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"

	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/safeopen"
)

// checkRegistries validates the node's settings for registries, which the library reads only in part
// or silently ignores. It returns every problem with its file, and its line if there is one. Files of
// the system are left to the library.
func checkRegistries(req wire.Request) error {
	var errs []error
	if req.RegistriesConf != "" && req.RegistriesConf != os.DevNull {
		files := []string{req.RegistriesConf}
		more, err := filepath.Glob(filepath.Join(req.RegistriesConf+".d", "*.conf"))
		errs = append(errs, err)
		for _, file := range append(files, more...) {
			errs = append(errs, checkConf(file))
		}
		if errors.Join(errs...) == nil {
			errs = append(errs, checkMeaning(req.RegistriesConf))
		}
	}
	if req.AuthFile != "" {
		errs = append(errs, checkAuth(req.AuthFile))
	}
	if req.CertDir != "" {
		errs = append(errs, checkCerts(req.CertDir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the node's settings for registries: %w", err)
	}
	return nil
}

// placed adds the file to an error, and the line if it is not 0.
func placed(file string, line int, format string, args ...any) error {
	at := file
	if line > 0 {
		at = fmt.Sprintf("%s:%d", file, line)
	}
	return fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...))
}

func read(file string) ([]byte, error) {
	f, err := safeopen.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := readAtMost(f)
	if err != nil {
		return nil, placed(file, 0, "%w", err)
	}
	return data, nil
}

// strictConf has all settings of containers-registries.conf(5). The library ignores other ones, so
// that an "insecure" or a "mirror" with a typing mistake has no effect.
type strictConf struct {
	sysregistriesv2.V2RegistriesConf
	Aliases map[string]string `toml:"aliases"`
}

// tomlLine matches the decoder's errors about types, which are not ParseErrors.
var tomlLine = regexp.MustCompile(`^toml: line (\d+) (.*)$`)

// checkConf finds syntax errors, values of wrong types and unknown settings.
func checkConf(file string) error {
	data, err := read(file)
	if err != nil {
		return err
	}
	var conf strictConf
	meta, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&conf)
	var parse toml.ParseError
	if errors.As(err, &parse) {
		return placed(file, parse.Position.Line, "%s", parse.Message)
	}
	if err != nil {
		if m := tomlLine.FindStringSubmatch(err.Error()); m != nil {
			line, _ := strconv.Atoi(m[1])
			return placed(file, line, "%s", m[2])
		}
		return placed(file, 0, "%w", err)
	}
	var errs []error
	for _, key := range meta.Undecoded() {
		errs = append(errs, placed(file, lineOfKey(data, key[len(key)-1]), "the setting %q does not exist", key.String()))
	}
	return errors.Join(errs...)
}

// lineOfKey returns the first line that sets a key or opens its table. It is 0 if no line does.
func lineOfKey(data []byte, key string) int {
	quoted := regexp.QuoteMeta(key)
	at := regexp.MustCompile(`(?m)^[ \t]*(["']?` + quoted + `["']?[ \t]*=|\[+[^\]\n]*\b` + quoted + `["']?[ \t]*\])`).FindIndex(data)
	if at == nil {
		return 0
	}
	return 1 + bytes.Count(data[:at[0]], []byte("\n"))
}

// quotedValue matches the values that the library's errors quote.
var quotedValue = regexp.MustCompile(`["']([^"']+)["']`)

// checkMeaning makes the library read the file.
func checkMeaning(file string) error {
	_, err := sysregistriesv2.GetRegistries(&types.SystemContext{SystemRegistriesConfPath: file, SystemRegistriesConfDirPath: file + ".d"})
	if err == nil {
		return nil
	}
	line := 0
	if data, unread := read(file); unread == nil {
		for _, m := range quotedValue.FindAllStringSubmatch(err.Error(), -1) {
			if i := bytes.Index(data, []byte(m[1])); i >= 0 {
				line = 1 + bytes.Count(data[:i], []byte("\n"))
				break
			}
		}
	}
	return placed(file, line, "%w", err)
}

// checkAuth checks containers-auth.json(5). It does not quote values. Docker writes more than the
// documented fields into its file, so unknown ones are allowed.
func checkAuth(file string) error {
	data, err := read(file)
	if err != nil {
		return err
	}
	var auth struct {
		Auths       map[string]struct{ Auth, Username, Password, IdentityToken string } `json:"auths"`
		CredHelpers map[string]string                                                   `json:"credHelpers"`
	}
	err = json.Unmarshal(data, &auth)
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return placed(file, lineOfOffset(data, syntax.Offset), "%w", syntax)
	case errors.As(err, &wrong):
		return placed(file, lineOfOffset(data, wrong.Offset), "a value in %s must not be of the type %s", wrong.Field, wrong.Value)
	case err != nil:
		return placed(file, 0, "it is not JSON") // the error could quote a password
	}
	var errs []error
	for name, entry := range auth.Auths {
		if entry.Auth == "" {
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(entry.Auth))
		if err != nil || !bytes.ContainsRune(plain, ':') {
			errs = append(errs, placed(file, lineOfText(data, name), "auths[%q].auth must be the base64 of USER:PASSWORD", name))
		}
	}
	return errors.Join(errs...)
}

func lineOfOffset(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte("\n"))
}

func lineOfText(data []byte, text string) int {
	i := bytes.Index(data, []byte(text))
	if i < 0 {
		return 0
	}
	return lineOfOffset(data, int64(i))
}

// checkCerts checks a directory of containers-certs.d(5): each subdirectory HOST[:PORT] has authorities
// in *.crt, and certificates of the node in *.cert with their *.key.
func checkCerts(dir string) error {
	hosts, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, host := range hosts {
		at := filepath.Join(dir, host.Name())
		files, err := os.ReadDir(at)
		if err != nil {
			errs = append(errs, placed(at, 0, "must be a directory with the name HOST or HOST:PORT"))
			continue
		}
		for _, f := range files {
			errs = append(errs, checkCert(filepath.Join(at, f.Name())))
		}
	}
	return errors.Join(errs...)
}

func checkCert(file string) error {
	switch filepath.Ext(file) {
	case ".crt":
		data, err := read(file)
		if err != nil {
			return err
		}
		if !x509.NewCertPool().AppendCertsFromPEM(data) {
			return placed(file, 0, "it has no certificate in the PEM format")
		}
	case ".cert":
		key := strings.TrimSuffix(file, ".cert") + ".key"
		if _, err := tls.LoadX509KeyPair(file, key); err != nil {
			return placed(file, 0, "using it with %s: %w", filepath.Base(key), err)
		}
	case ".key":
		cert := strings.TrimSuffix(file, ".key") + ".cert"
		if _, err := os.Stat(cert); errors.Is(err, fs.ErrNotExist) {
			return placed(file, 0, "its certificate %s does not exist", filepath.Base(cert))
		}
	}
	return nil
}

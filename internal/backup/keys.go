package backup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"filippo.io/age"
	"filippo.io/age/agessh"
)

// MinPassphrase is the length of the shortest passphrase that is accepted, in bytes.
const MinPassphrase = 12

// maxKeyFile bounds a file with a passphrase, recipients or identities.
const maxKeyFile = 1 << 20

// Recipients says for whom a backup is encrypted. The zero value encrypts for nobody, which
// needs Unencrypted.
type Recipients struct {
	recipients []age.Recipient
	// Unencrypted allows a backup that everybody can read who has the file.
	Unencrypted bool
}

// ErrUnprotected is returned for a backup without encryption that the user did not ask for.
var ErrUnprotected = errors.New("the backup would not be encrypted, and it contains the private key of the cluster's certificate authority and all keys of Secrets")

// Validate returns ErrUnprotected if the backup would be readable for everybody.
func (r Recipients) Validate() error {
	if len(r.recipients) == 0 && !r.Unencrypted {
		return ErrUnprotected
	}
	if len(r.recipients) > 0 && r.Unencrypted {
		return errors.New("the backup cannot be encrypted and unencrypted at the same time")
	}
	return nil
}

// Passphrase returns the recipient of a passphrase.
func Passphrase(passphrase string) (Recipients, error) {
	if len(passphrase) < MinPassphrase {
		return Recipients{}, fmt.Errorf("the passphrase has %d characters, and needs at least %d", len(passphrase), MinPassphrase)
	}
	r, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return Recipients{}, fmt.Errorf("using the passphrase: %w", err)
	}
	return Recipients{recipients: []age.Recipient{r}}, nil
}

// ParseRecipients reads public keys: age1... of age-keygen, or an ssh-ed25519 or ssh-rsa key.
func ParseRecipients(keys ...string) (Recipients, error) {
	var out Recipients
	for _, key := range keys {
		key = strings.TrimSpace(key)
		var r age.Recipient
		var err error
		if strings.HasPrefix(key, "ssh-") {
			r, err = agessh.ParseRecipient(key)
		} else {
			r, err = age.ParseX25519Recipient(key)
		}
		if err != nil {
			if strings.HasPrefix(strings.ToUpper(key), "AGE-SECRET-KEY-") {
				return Recipients{}, errors.New("the recipient is a secret key: use the public key, which begins with age1")
			}
			return Recipients{}, fmt.Errorf("reading the recipient %q: %w: use a public key that begins with age1, ssh-ed25519 or ssh-rsa", key, err)
		}
		out.recipients = append(out.recipients, r)
	}
	return out, nil
}

// Identities decrypt a backup. The zero value reads only backups without encryption.
type Identities struct {
	identities []age.Identity
}

// PassphraseIdentity decrypts with a passphrase.
func PassphraseIdentity(passphrase string) (Identities, error) {
	i, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return Identities{}, fmt.Errorf("using the passphrase: %w", err)
	}
	return Identities{identities: []age.Identity{&remembered{Identity: i}}}, nil
}

// remembered is an identity that remembers the key of the last file. A backup is read several times,
// and deriving a key from a passphrase takes a second.
type remembered struct {
	age.Identity
	mu   sync.Mutex
	file string
	key  []byte
}

// Unwrap implements age.Identity.
func (r *remembered) Unwrap(stanzas []*age.Stanza) ([]byte, error) {
	file := ""
	for _, s := range stanzas {
		file += fmt.Sprintf("%q", *s)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == file {
		return bytes.Clone(r.key), nil
	}
	key, err := r.Identity.Unwrap(stanzas)
	if err == nil {
		r.file, r.key = file, bytes.Clone(key)
	}
	return key, err
}

// ParseIdentities reads private keys: the file of age-keygen, or an SSH key without a passphrase.
func ParseIdentities(content []byte) (Identities, error) {
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("-----BEGIN")) {
		i, err := agessh.ParseIdentity(content)
		if err != nil {
			return Identities{}, fmt.Errorf("reading the SSH key: %w (a key that has a passphrase cannot be used)", err)
		}
		return Identities{identities: []age.Identity{i}}, nil
	}
	list, err := age.ParseIdentities(bytes.NewReader(content))
	if err != nil {
		// The error of age may quote a line of the file.
		return Identities{}, errors.New("reading the identities: a line is not a key that begins with AGE-SECRET-KEY- (the cause is not shown, because it may contain a key)")
	}
	return Identities{identities: list}, nil
}

// ReadPassphrase returns the first line of a file.
func ReadPassphrase(path string) (string, error) {
	content, err := readSmall(path)
	if err != nil {
		return "", fmt.Errorf("reading the passphrase: %w", err)
	}
	line, _, _ := strings.Cut(string(content), "\n")
	line = strings.TrimSuffix(line, "\r")
	if line == "" {
		return "", fmt.Errorf("reading the passphrase: the first line of %s is empty", path)
	}
	return line, nil
}

// ReadIdentities reads a file with private keys.
func ReadIdentities(path string) (Identities, error) {
	content, err := readSmall(path)
	if err != nil {
		return Identities{}, fmt.Errorf("reading the identities: %w", err)
	}
	i, err := ParseIdentities(content)
	if err != nil {
		return Identities{}, fmt.Errorf("%s: %w", path, err)
	}
	return i, nil
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err == nil && len(content) > maxKeyFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxKeyFile)
	}
	return content, err
}

const (
	ageMagic  = "age-encryption.org/"
	zstdMagic = "\x28\xb5\x2f\xfd"
)

// decrypt returns the archive in r, and whether it was encrypted.
func decrypt(r io.Reader, keys Identities) (io.Reader, bool, error) {
	in := bufio.NewReader(r)
	begin, err := in.Peek(len(ageMagic))
	switch {
	case bytes.HasPrefix(begin, []byte(zstdMagic)):
		return in, false, nil
	case len(begin) == 0:
		return nil, false, fmt.Errorf("%w: the file is empty", ErrNotBackup)
	case string(begin) != ageMagic:
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, false, fmt.Errorf("reading the backup: %w", err)
		}
		return nil, false, fmt.Errorf("%w: it begins with neither an age header nor a zstd frame: check the name of the file", ErrNotBackup)
	case len(keys.identities) == 0:
		return nil, true, fmt.Errorf("%w: it is encrypted: give the passphrase or the file with the private key", ErrKey)
	}
	out, err := age.Decrypt(in, keys.identities...)
	if _, none := errors.AsType[*age.NoIdentityMatchError](err); none {
		return nil, true, fmt.Errorf("%w: the passphrase or the private key is not one for which it was encrypted: use another", ErrKey)
	}
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return nil, true, fmt.Errorf("%w in its age header: copy it again, or use another backup", ErrTruncated)
		}
		return nil, true, fmt.Errorf("%w in its age header: %w: copy it again, or use another backup", ErrDamaged, err)
	}
	return out, true, nil
}

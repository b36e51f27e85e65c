// Package keyflags has the command line flags with which users name the keys of backups. The
// programs rik and rikctl share it.
package keyflags

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"rik.dev/rik/internal/backup"
)

// PassphraseEnv is the environment variable with a passphrase.
const PassphraseEnv = "RIK_BACKUP_PASSPHRASE"

// Recipients are the flags of a command that encrypts.
type Recipients struct {
	keys        []string
	passphrase  string
	unencrypted bool
}

// Add adds the flags.
func (r *Recipients) Add(s *pflag.FlagSet) {
	s.StringArrayVar(&r.keys, "recipient", nil, "public key that can decrypt the backup: age1... of age-keygen, ssh-ed25519 or ssh-rsa; may be repeated")
	s.StringVar(&r.passphrase, "passphrase-file", "", "file whose first line is the passphrase that decrypts the backup ["+PassphraseEnv+"]")
	s.BoolVar(&r.unencrypted, "unencrypted", false, "do not encrypt the backup; it contains all keys of the cluster")
}

// Get returns who can decrypt the backup. A passphrase in the environment counts only without
// another flag.
func (r *Recipients) Get() (backup.Recipients, error) {
	passphrase := os.Getenv(PassphraseEnv)
	if len(r.keys) > 0 || r.unencrypted {
		passphrase = ""
	}
	if r.passphrase != "" {
		var err error
		if passphrase, err = backup.ReadPassphrase(r.passphrase); err != nil {
			return backup.Recipients{}, err
		}
	}
	switch {
	case passphrase != "" && (len(r.keys) > 0 || r.unencrypted), len(r.keys) > 0 && r.unencrypted:
		return backup.Recipients{}, errors.New("use only one of --recipient, --passphrase-file and --unencrypted")
	case r.unencrypted:
		return backup.Recipients{Unencrypted: true}, nil
	case passphrase != "":
		return backup.Passphrase(passphrase)
	case len(r.keys) == 0:
		return backup.Recipients{}, fmt.Errorf("%w: use --recipient, --passphrase-file, or --unencrypted if you protect the file in another way", backup.ErrUnprotected)
	}
	return backup.ParseRecipients(r.keys...)
}

// Identities are the flags of a command that decrypts.
type Identities struct {
	// Prefix begins the names of the flags, such as "restore-".
	Prefix         string
	identity, pass string
}

// Add adds the flags.
func (i *Identities) Add(s *pflag.FlagSet) {
	s.StringVar(&i.identity, i.Prefix+"identity", "", "file with the private key that decrypts the backup: of age-keygen, or an SSH key")
	s.StringVar(&i.pass, i.Prefix+"passphrase-file", "", "file whose first line is the passphrase of the backup ["+PassphraseEnv+"]")
}

// Given reports whether a flag is set.
func (i *Identities) Given() bool { return i.identity != "" || i.pass != "" }

// Args returns the flags for another command.
func (i *Identities) Args() []string {
	var args []string
	if i.identity != "" {
		args = append(args, "--"+i.Prefix+"identity="+i.identity)
	}
	if i.pass != "" {
		args = append(args, "--"+i.Prefix+"passphrase-file="+i.pass)
	}
	return args
}

// Get returns the keys. Without any it returns none, which is enough for a backup without
// encryption.
func (i *Identities) Get() (backup.Identities, error) {
	switch {
	case i.identity != "" && i.pass != "":
		return backup.Identities{}, fmt.Errorf("use only one of --%sidentity and --%spassphrase-file", i.Prefix, i.Prefix)
	case i.identity != "":
		return backup.ReadIdentities(i.identity)
	}
	passphrase := os.Getenv(PassphraseEnv)
	if i.pass != "" {
		var err error
		if passphrase, err = backup.ReadPassphrase(i.pass); err != nil {
			return backup.Identities{}, err
		}
	}
	if passphrase == "" {
		return backup.Identities{}, nil
	}
	return backup.PassphraseIdentity(passphrase)
}

// Package jointoken formats and parses the text of a join token, which a controller issues and a
// node redeems. Only the controller can decide whether a token is valid.
package jointoken

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
)

// prefix identifies the format, so that later formats can be distinguished and a token can be
// recognized in a leaked file.
const prefix = "rik1"

// The lengths of the parts. They also limit the work for a malicious command line or request.
const (
	hashLength           = 64 // hexadecimal digits of a SHA-256
	minID, maxID         = 4, 32
	minSecret, maxSecret = 16, 256
)

// ErrMalformed is wrapped by every error of [Parse].
var ErrMalformed = errors.New("not a join token")

// Token allows a machine to request a node certificate.
type Token struct {
	// CAHash is the SHA-256 of the cluster authority's certificate (DER) in hexadecimal. The
	// node sends the secret only to a server of that authority.
	CAHash string
	// ID identifies the token to the controller and in lists. It is not secret.
	ID string
	// Secret proves that the bearer was given the token.
	Secret string
}

// Validate reports every part that [Parse] would refuse.
func (t Token) Validate() error {
	var problems []error
	if len(t.CAHash) != hashLength || !consistsOf(t.CAHash, "0123456789abcdef") {
		problems = append(problems, errors.New("the hash of the certificate authority must be 64 hexadecimal digits"))
	}
	if len(t.ID) < minID || len(t.ID) > maxID || !consistsOf(t.ID, lower+digits) {
		problems = append(problems, fmt.Errorf("the ID must be %d to %d lower-case letters and digits", minID, maxID))
	}
	if len(t.Secret) < minSecret || len(t.Secret) > maxSecret || !consistsOf(t.Secret, lower+upper+digits+"-_") {
		problems = append(problems, fmt.Errorf("the secret must be %d to %d letters, digits, - and _", minSecret, maxSecret))
	}
	return errors.Join(problems...)
}

// The characters of the parts. Regular expressions with such counts would cost the node agent
// 250 KiB of memory.
const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func consistsOf(text, characters string) bool {
	return strings.Trim(text, characters) == ""
}

// Text returns the whole token with its secret: rik1.<hash>.<id>.<secret>.
func (t Token) Text() string {
	return strings.Join([]string{prefix, t.CAHash, t.ID, t.Secret}, ".")
}

// String omits the secret, so that a token that is logged by accident is useless.
func (t Token) String() string {
	return strings.Join([]string{prefix, t.CAHash, t.ID, "***"}, ".")
}

// SecretIs compares the secret in constant time.
func (t Token) SecretIs(secret string) bool {
	return subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) == 1
}

// Parse parses the format of [Token.Text]. It ignores surrounding spaces, which copying adds.
// The error never contains the text.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return Token{}, fmt.Errorf("%w: it must have four parts separated by dots, and it has %d", ErrMalformed, len(parts))
	}
	if parts[0] != prefix {
		return Token{}, fmt.Errorf("%w: it must begin with %q", ErrMalformed, prefix+".")
	}
	t := Token{CAHash: parts[1], ID: parts[2], Secret: parts[3]}
	if err := t.Validate(); err != nil {
		return Token{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return t, nil
}

// Package jointoken is the text form of a join token, which a controller gives
// out and a node redeems. It only writes and reads the text; whether a token is
// valid is the controller's to say.
package jointoken

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
)

// prefix names the form, so that a later one can be told apart and a token is
// recognized in a leaked file.
const prefix = "rik1"

// The lengths of the parts. They also bound what a hostile command line or
// request makes us look at.
const (
	hashLength           = 64 // hexadecimal digits of a SHA-256
	minID, maxID         = 4, 32
	minSecret, maxSecret = 16, 256
)

// ErrMalformed is wrapped by every error of [Parse].
var ErrMalformed = errors.New("not a join token")

// Token lets one machine ask for a node certificate.
type Token struct {
	// CAHash is the SHA-256 of the cluster authority's certificate (DER) in
	// hexadecimal: the node trusts nobody else with the secret.
	CAHash string
	// ID names the token to the controller and in lists. It is not secret.
	ID string
	// Secret proves that the bearer was given the token.
	Secret string
}

// Validate reports every part that [Parse] would refuse.
func (t Token) Validate() error {
	var problems []error
	if len(t.CAHash) != hashLength || !consistsOf(t.CAHash, "0123456789abcdef") {
		problems = append(problems, errors.New("the authority's hash must be 64 hexadecimal digits"))
	}
	if len(t.ID) < minID || len(t.ID) > maxID || !consistsOf(t.ID, lower+digits) {
		problems = append(problems, fmt.Errorf("the id must be %d to %d lower-case letters and digits", minID, maxID))
	}
	if len(t.Secret) < minSecret || len(t.Secret) > maxSecret || !consistsOf(t.Secret, lower+upper+digits+"-_") {
		problems = append(problems, fmt.Errorf("the secret must be %d to %d letters, digits, - and _", minSecret, maxSecret))
	}
	return errors.Join(problems...)
}

// What parts consist of. Regular expressions with such counts would cost the
// node agent a quarter of a megabyte.
const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

func consistsOf(text, characters string) bool {
	return strings.Trim(text, characters) == ""
}

// Text is the whole token, secret included: rik1.<hash>.<id>.<secret>.
func (t Token) Text() string {
	return strings.Join([]string{prefix, t.CAHash, t.ID, t.Secret}, ".")
}

// String leaves the secret out, so that a token that is logged by accident is
// of no use to who reads the log.
func (t Token) String() string {
	return strings.Join([]string{prefix, t.CAHash, t.ID, "***"}, ".")
}

// SecretIs compares without telling by the time it takes how much was right.
func (t Token) SecretIs(secret string) bool {
	return subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) == 1
}

// Parse reads the form of [Token.Text]. Spaces around it, which copying adds,
// are ignored. The error never repeats the text.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return Token{}, fmt.Errorf("%w: want four parts joined by dots, got %d", ErrMalformed, len(parts))
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

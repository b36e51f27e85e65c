package kubeconfig

import (
	"encoding/base64"
	"strings"

	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/excerpt"
)

// maxMessage is the maximum length of an error text, in bytes. A server may send any text.
const maxMessage = 1 << 10

// Redaction returns a function that converts errors to texts for statuses and logs. The texts do
// not contain the credentials, which a server could have returned, and have a limited length.
func Redaction(config *rest.Config) func(error) string {
	secrets := []string{config.BearerToken, config.Password, string(config.KeyData)}
	if config.Password != "" {
		secrets = append(secrets, base64.StdEncoding.EncodeToString([]byte(config.Username+":"+config.Password)))
	}
	var pairs []string
	for _, secret := range secrets {
		if secret != "" {
			pairs = append(pairs, secret, "[redacted]")
		}
	}
	replacer := strings.NewReplacer(pairs...)
	return func(err error) string {
		return excerpt.Of(strings.ToValidUTF8(replacer.Replace(err.Error()), "?"), maxMessage)
	}
}

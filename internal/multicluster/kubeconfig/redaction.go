package kubeconfig

import (
	"encoding/base64"
	"strings"

	"k8s.io/client-go/rest"
)

// maxMessage bounds what is shown of an error, in bytes. Servers may say anything.
const maxMessage = 1 << 10

// Redaction makes of errors what may stand in a status or in a log: without the
// credentials, which a server could have sent back, and not without end.
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
		text := strings.ToValidUTF8(replacer.Replace(err.Error()), "?")
		if len(text) > maxMessage {
			text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
		}
		return text
	}
}

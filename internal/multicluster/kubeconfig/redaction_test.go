package kubeconfig

import (
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestRedaction(t *testing.T) {
	t.Parallel()
	const secret = "c4n4ry-5ecret"
	report := Redaction(&rest.Config{BearerToken: secret, Password: secret + "2"})
	got := report(errors.New("401: who is " + secret + "?\xff" + strings.Repeat("é", maxMessage)))
	if strings.Contains(got, secret) || len(got) > maxMessage+3 || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("tell = %q", got)
	}
	if got := Redaction(&rest.Config{})(errors.New("plain")); got != "plain" {
		t.Errorf("tell = %q", got)
	}
	basic := base64.StdEncoding.EncodeToString([]byte("ada:" + secret))
	if got := Redaction(&rest.Config{Username: "ada", Password: secret})(errors.New("you sent Basic " + basic)); strings.Contains(got, basic) {
		t.Errorf("tell = %q", got)
	}
}

// An HTTPS server cannot cause the credentials to be sent in plain text.
func TestOnlyKeepsTheScheme(t *testing.T) {
	t.Parallel()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://192.0.2.1/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := only{scheme: "https", host: "192.0.2.1"}.RoundTrip(r)
	if !errors.Is(err, errElsewhere) {
		_ = answer.Body.Close()
		t.Errorf("RoundTrip = %v, want %v", err, errElsewhere)
	}
}

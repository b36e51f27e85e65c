package fetch

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/distribution/reference"
)

// Only loopback may be used without TLS.
func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string]bool{
		"localhost": true, "localhost:5000": true, "127.0.0.1:5000": true, "127.9.9.9": true, "[::1]:5000": true, "[::1]": true,
		"docker.io": false, "localhost.example:5000": false, "127.0.0.1.example": false, "10.0.0.1:5000": false, "[fe80::1]:5000": false, "0.0.0.0:5000": false,
	} {
		if got := isLoopback(domain); got != want {
			t.Errorf("isLoopback(%q) = %v, want %v", domain, got, want)
		}
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for _, tc := range []struct {
		name, image, config string
		want                string // user:password, "" for none
		wantErr             bool
	}{
		{name: "no secret", image: "a.example/app"},
		{name: "by host", image: "a.example/app", config: `{"auths":{"a.example":{"auth":"` + b64("u:p:q") + `"}}}`, want: "u:p:q"},
		{name: "by host and port", image: "a.example:5000/app", config: `{"auths":{"a.example":{"auth":"` + b64("x:y") + `"},"a.example:5000":{"username":"u","password":"p"}}}`, want: "u:p"},
		{name: "the longest path", image: "a.example/team/app", config: `{"auths":{"a.example":{"username":"u","password":"1"},"a.example/team":{"username":"u","password":"2"},"a.example/te":{"username":"u","password":"3"}}}`, want: "u:2"},
		{name: "the Hub", image: "nginx", config: `{"auths":{"https://index.docker.io/v1/":{"auth":"` + b64("u:p") + `"}}}`, want: "u:p"},
		{name: "the Hub, short", image: "me/app", config: `{"auths":{"docker.io":{"auth":"` + b64("u:p") + `"}}}`, want: "u:p"},
		{name: "another host's", image: "a.example/app", config: `{"auths":{"b.example":{"auth":"` + b64("u:p") + `"},"example":{"auth":"` + b64("u:p") + `"},"":{"auth":"` + b64("u:p") + `"}}}`},
		{name: "malformed", image: "a.example/app", config: `{"auths":{"a.example":{"auth":"%%%"}}}`, wantErr: true},
		{name: "without a colon", image: "a.example/app", config: `{"auths":{"a.example":{"auth":"` + b64("u") + `"}}}`, wantErr: true},
		{name: "no JSON", image: "a.example/app", config: `u:p`, wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			named, err := reference.ParseNormalizedNamed(tc.image)
			if err != nil {
				t.Fatal(err)
			}
			auth, err := credentials([]byte(tc.config), named)
			if (err != nil) != tc.wantErr {
				t.Fatalf("credentials: error %v, want one: %v", err, tc.wantErr)
			}
			got := ""
			if auth != nil {
				got = fmt.Sprintf("%s:%s", auth.Username, auth.Password)
			}
			if got != tc.want {
				t.Errorf("credentials = %q, want %q", got, tc.want)
			}
		})
	}
}

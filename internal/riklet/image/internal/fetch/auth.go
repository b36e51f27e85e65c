package fetch

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"go.podman.io/image/v5/types"
)

// credentials returns the entry of a dockerconfigjson that fits the reference best: the longest
// one that is the registry or a parent path of the repository. If the result is nil, the library
// reads the node's own files.
//
// Only "auths" is read. The library's own reader would also run the credential helpers in the
// file, which comes from a tenant.
func credentials(config []byte, named reference.Named) (*types.DockerAuthConfig, error) {
	if len(config) == 0 {
		return nil, nil
	}
	var file struct {
		Auths map[string]struct {
			Auth, Username, Password, IdentityToken string
		} `json:"auths"`
	}
	if json.Unmarshal(config, &file) != nil {
		// The decoder's message could contain a part of the secret.
		return nil, errors.New("the pull secret is not a dockerconfigjson")
	}
	best, bestKey := -1, ""
	for key := range file.Auths {
		if n := matchLength(key, named.Name()); n > best {
			best, bestKey = n, key
		}
	}
	if best < 0 {
		return nil, nil
	}
	entry := file.Auths[bestKey]
	out := &types.DockerAuthConfig{Username: entry.Username, Password: entry.Password, IdentityToken: entry.IdentityToken}
	if entry.Auth == "" {
		return out, nil
	}
	plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(entry.Auth))
	user, password, ok := strings.Cut(string(plain), ":")
	if err != nil || !ok {
		return nil, fmt.Errorf("the pull secret's entry for %q has a malformed auth field", bestKey)
	}
	out.Username, out.Password = user, strings.TrimRight(password, "\x00")
	return out, nil
}

// matchLength returns how much of the repository's name key covers, or -1 if they do not match.
// Keys may look like Docker Hub's "https://index.docker.io/v1/", or have no path.
func matchLength(key, name string) int {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key, _, _ = strings.Cut(rest, "/")
	}
	key = strings.TrimSuffix(key, "/")
	for _, alias := range []string{"index.docker.io", "registry-1.docker.io"} {
		if key == alias || strings.HasPrefix(key, alias+"/") {
			key = strings.TrimSuffix("docker.io"+strings.TrimPrefix(key, alias), "/v1")
		}
	}
	if key == "" || (name != key && !strings.HasPrefix(name, key+"/")) {
		return -1
	}
	return len(key)
}

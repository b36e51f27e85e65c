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

// credentials picks from a dockerconfigjson what fits the reference best: the
// longest entry that is the registry or a path that the repository is under.
// nil means that there is none; the library then looks at the node's own files.
//
// Only "auths" is read. The library's own reader would also run the credential
// helpers that the file names, and the file is a tenant's.
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
		// The decoder's message could quote a part of the secret.
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

// matchLength is how much of the repository's name key covers, -1 for none.
// Keys may look like "https://index.docker.io/v1/", the Hub's, or have no path.
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

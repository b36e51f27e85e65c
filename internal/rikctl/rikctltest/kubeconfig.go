package rikctltest

import (
	"os"
	"path/filepath"
	"testing"
)

// Canary is a marker in place of the secrets of a kubeconfig.
const Canary = "c4n4ry-5ecret"

// Kubeconfig writes a kubeconfig with two contexts. One of them names files.
func Kubeconfig(t *testing.T, dir string) string {
	t.Helper()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("token", Canary+"\n")
	return write("clusters.yaml", `apiVersion: v1
kind: Config
current-context: east
contexts:
- {name: east, context: {cluster: east, user: east}}
- {name: west, context: {cluster: west, user: west}}
- {name: runs, context: {cluster: west, user: runs}}
clusters:
- {name: east, cluster: {server: "https://192.0.2.1:6443"}}
- {name: west, cluster: {server: "https://192.0.2.2:6443"}}
users:
- {name: east, user: {token: east-token}}
- {name: west, user: {tokenFile: token}}
- {name: runs, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: sh, interactiveMode: Never}}}
`)
}

package suggest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"

	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
)

// suggestConfig suggests a working command to a user whose configuration has no credentials,
// like those of the published clients.
func (t *tool) suggestConfig(o clierror.Outcome, args []string) clierror.Outcome {
	found := t.Getter.Found
	if found == nil || t.Getter.Kubeconfig != "" || !found.File.Cluster.IsPublished() || !needsCredentials(o) {
		return o
	}
	server := found.File.Cluster.Server
	if !onThisMachine(server) {
		o.Next = fmt.Sprintf("the configuration %s has neither the authority of %s nor credentials. Copy config.yaml from the data directory of that server, set the https URL of the server in it, and name the copy with --config or $RIKCONFIG", found.Origin(), server)
		return o
	}
	path := t.Getter.Source.SystemPath()
	sudo := ""
	switch _, err := t.Getter.Source.ReadFile(path); {
	case errors.Is(err, fs.ErrPermission):
		sudo = "sudo "
	case err != nil:
		o.Next = fmt.Sprintf("the configuration %s has neither the authority of %s nor credentials: name config.yaml of the server's --data-dir with --config or $RIKCONFIG (%s does not exist)", found.Origin(), server, path)
		return o
	}
	line := cmdline.CommandLine(append([]string{"--config=" + path}, withoutConfig(args)...))
	o.Next = fmt.Sprintf("the configuration %s has neither the authority of the server nor credentials; the configuration that the server wrote has both: %s%s", found.Origin(), sudo, line)
	return o
}

// needsCredentials reports whether the client does not trust the server's certificate, or the
// server does not accept the client.
func needsCredentials(o clierror.Outcome) bool {
	//prose:foreign
	return o.Code == clierror.ExitDenied || clierror.ContainsAny(o.Text, []string{"certificate signed by unknown authority", "failed to verify certificate"}) || clierror.IsForeign(o.Text)
}

// withoutConfig removes the flag that names a configuration.
func withoutConfig(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--":
			return append(out, args[i:]...)
		case args[i] == "--config":
			i++
		case !strings.HasPrefix(args[i], "--config="):
			out = append(out, args[i])
		}
	}
	return out
}

func onThisMachine(server string) bool {
	u, err := url.Parse(server)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

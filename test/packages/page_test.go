package packages

import (
	"os"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/privileged"
)

// blocks returns the shell blocks of a section of docs/install.md.
func blocks(t testing.TB, section string) []string {
	t.Helper()
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("docs/install.md has no section %q", section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var all []string
	for {
		_, after, found := strings.Cut(rest, "```sh\n")
		if !found {
			break
		}
		block, left, _ := strings.Cut(after, "```")
		all, rest = append(all, block), left
	}
	if len(all) == 0 {
		t.Fatalf("the section %q of docs/install.md has no shell blocks", section)
	}
	return all
}

// asPrinted runs a block of the page in the directory with the packages. A machine of tests has no
// sudo, and everything is root.
func (m *machine) asPrinted(block string) string {
	m.Helper()
	return m.run("sudo() { env \"$@\"; }\ncd /test/now\n" + block)
}

// TestPrivilegedInstallPage runs the commands of docs/install.md as printed: a server from .deb
// packages, its configuration, a node from the archive's package, and the removal.
func TestPrivilegedInstallPage(t *testing.T) {
	privileged.Require(t)
	now := environment(t, "RIK_PACKAGES")
	m := newMachine(t)
	m.packagesOf(now, "now")
	server := blocks(t, "Debian and Ubuntu")
	if out := m.asPrinted(server[0]); !strings.Contains(out, "Setting up rik ") {
		t.Errorf("the installation printed:\n%s", out)
	}
	m.eventually("rikctl get nodes", "Ready")
	for _, block := range blocks(t, "Configure the service") {
		m.asPrinted(block)
	}
	m.eventually("systemctl show -p MainPID --value rik | xargs -I{} cat /proc/{}/cmdline | tr '\\0' ' '", "--tls-san rik.example.com")
	if token := m.asPrinted(blocks(t, "Add a node")[0]); !strings.Contains(token, "::") && len(strings.TrimSpace(token)) < 20 {
		t.Errorf("the join token is %q", token)
	}
	m.run("apt-get purge -qq -y rik riklet rikctl")

	for _, block := range blocks(t, "An archive, on any Linux")[:2] {
		m.asPrinted(block)
		m.eventually("rikctl get nodes", "Ready")
	}
	m.run("rik uninstall")
}

// TestPrivilegedControlPlaneOnly runs a server in its sandbox, as a user without rights, and a node
// that joins it from the same archive.
func TestPrivilegedControlPlaneOnly(t *testing.T) {
	privileged.Require(t)
	now, image := environment(t, "RIK_PACKAGES"), environment(t, "RIK_SAMPLE_IMAGE")
	server := newMachine(t)
	before := server.snapshot()
	server.packagesOf(now, "now")
	server.put(image)
	printed := blocks(t, "An archive, on any Linux")
	server.asPrinted(printed[0][:strings.Index(printed[0], "\n")+1] + printed[2])
	server.eventually("rikctl get tenants", "")
	if user := strings.TrimSpace(server.run("ps -o user= -p $(systemctl show -p MainPID --value rik)")); user != "rik" {
		t.Errorf("the server runs as %q, want rik", user)
	}
	score := server.run("systemd-analyze security --no-pager rik.service | tail -1")
	t.Logf("systemd-analyze security: %s", strings.TrimSpace(score))
	if !strings.Contains(score, "OK") {
		t.Errorf("systemd-analyze security says %q, want OK", score)
	}
	// A node on the same machine joins the server with the agent's own service.
	server.run("cp /var/lib/rik/data/node-token /test/token")
	server.run("cd /test/now && RIK_TOKEN=$(cat /test/token) rik-*-linux-*/install.sh agent --prefix /opt/rik --server https://127.0.0.1:5000")
	server.eventually("rikctl get nodes", "Ready")
	server.eventually("rikctl apply -f /test/hello.yaml", "hello")
	server.answers()
	running := server.instances()
	server.run("systemctl restart riklet rik")
	server.same("a restart of both services", running)

	server.run("/opt/rik/bin/riklet uninstall --prefix /opt/rik && rik uninstall")
	server.run("rm -rf /root/.rik; systemctl reset-failed")
	server.unchanged(before)
}

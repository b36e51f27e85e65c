package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
)

// asPrinted runs a block of a page in the directory of the packages "now".
func (m *machine) asPrinted(block string) string {
	m.Helper()
	return m.run(printed("now", block))
}

// printed returns the script that runs a block of a page in a directory of packages. A machine of
// tests has no sudo, and everything is root.
func printed(dir, block string) string {
	return "sudo() { env \"$@\"; }\ncd /test/" + dir + "\n" + block
}

// TestPrivilegedInstallPage runs the commands of the first screen of README.md, of docs/install.md and of
// docs/troubleshooting.md as printed: on a server from .deb packages and from the archive, and on a
// node that joins it.
func TestPrivilegedInstallPage(t *testing.T) {
	privileged.Require(t)
	now := environment(t, "RIK_PACKAGES")
	readme, page, trouble := pages.Open(t, "README.md"), pages.Open(t, "docs/install.md"), pages.Open(t, "docs/troubleshooting.md")
	m, node := newNamed(t, "server"), newNamed(t, "node")
	link(m, node)
	m.packagesOf(now, "now")
	node.packagesOf(now, "now")
	checkDownload(t, now, page.Block("Check a download", 1))

	for number := range 2 {
		m.helloAnswers(m.asPrinted(readme.Block("Try it", 1+number)))
		m.run("rik demo --down")
		m.run("if dpkg -s rik >/dev/null 2>&1; then apt-get purge -qq -y rik riklet rikctl; else rik uninstall; rm -rf /test/now/rik-*-linux-amd64; fi")
	}
	for number := range 2 {
		m.asPrinted(page.Block("An archive, on any Linux", 1+number))
		m.eventually("rikctl get nodes", "Ready")
	}
	m.run("rik uninstall")

	if out := m.asPrinted(page.Block("Debian and Ubuntu", 1)); !strings.Contains(out, "Setting up rik ") {
		t.Errorf("the installation printed:\n%s", out)
	}
	m.eventually("rikctl get nodes", "Ready")
	m.helloAnswers(m.asPrinted(page.Block("Run a sample application", 1)))
	m.asPrinted(page.Block("Configure the service", 1))
	m.eventually("systemctl show -p MainPID --value rik | xargs -I{} cat /proc/{}/cmdline | tr '\\0' ' '", "--tls-san rik.example.com")
	m.eventually("rikctl get nodes server", "Ready")

	token := strings.TrimSpace(m.asPrinted(page.Block("Add a node", 1)))
	node.asPrinted(page.Block("Debian and Ubuntu", 2))
	node.asPrinted(trouble.Block("Check a machine", 3))
	node.asPrinted("TOKEN=" + token + "\n" + page.Block("Add a node", 2))
	m.eventually("rikctl get nodes node", "Ready")
	node.asPrinted(trouble.Block("Check a machine", 2))
	node.run("apt-get purge -qq -y riklet rikctl")
	m.run("rikctl delete node node")
	node.asPrinted("tar xf rik-*-linux-amd64.tar.gz\nTOKEN=" + token + "\n" + page.Block("Add a node", 3))
	m.eventually("rikctl get nodes node", "Ready")

	for _, block := range []string{
		trouble.Block("Check a machine", 1), trouble.Block("In scripts", 1), trouble.Block("Report a problem", 1),
		trouble.Block("Report a problem", 2), trouble.Block("Report a problem", 3),
	} {
		m.asPrinted(block)
	}
}

// helloAnswers fails the test unless the sample application answered in the output of a block.
func (m *machine) helloAnswers(out string) {
	m.Helper()
	if !strings.Contains(out, "\nhello from hello-") {
		m.Errorf("the sample application did not answer:\n%s", out)
	}
}

// checkDownload runs the block that checks sums and signature, with a key of the test.
func checkDownload(t *testing.T, from, block string) {
	t.Helper()
	dir, home := t.TempDir(), t.TempDir()
	script := func(dir, text string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", text)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GNUPGHOME="+home)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	defer func() {
		_, _ = script("/", "gpgconf --kill all")
	}()
	if out, err := script(from, "cp -t "+dir+` *.deb SHA256SUMS && cd `+dir+` && chmod 0700 "$GNUPGHOME" &&
gpg --batch --quiet --passphrase '' --quick-generate-key rik default default never && gpg --batch --armor --detach-sign SHA256SUMS`); err != nil {
		t.Fatalf("signing: %v\n%s", err, out)
	}
	if out, err := script(dir, block); err != nil || strings.Count(out, ": OK\n") != 3 || !strings.Contains(out, "Good signature") {
		t.Errorf("checking a download: %v\n%s", err, out)
	}
	damaged, err := filepath.Glob(filepath.Join(dir, "rikctl_*.deb"))
	if err != nil || len(damaged) != 1 {
		t.Fatal(damaged, err)
	}
	if err := os.Truncate(damaged[0], 1000); err != nil {
		t.Fatal(err)
	}
	if out, err := script(dir, block); err == nil {
		t.Errorf("a damaged package passes:\n%s", out)
	}
}

// TestPrivilegedControlPlaneOnly runs a server in its sandbox, as a user without rights, and a node
// that joins it from the same archive.
func TestPrivilegedControlPlaneOnly(t *testing.T) {
	privileged.Require(t)
	now, image := environment(t, "RIK_PACKAGES"), environment(t, "RIK_SAMPLE_IMAGE")
	page := pages.Open(t, "docs/install.md")
	server := newMachine(t)
	before := server.snapshot()
	server.packagesOf(now, "now")
	server.put(image)
	unpack, _, _ := strings.Cut(page.Block("An archive, on any Linux", 1), "\n")
	server.asPrinted(unpack + "\n" + page.Block("An archive, on any Linux", 3))
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

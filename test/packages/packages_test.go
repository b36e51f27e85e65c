// Package packages tests each way onto a machine, on a Debian with systemd that the test boots. Each
// test installs rik, waits for an application that answers, and upgrades rik. Then it kills and
// restarts the service, reboots the machine, and removes rik. At the end it compares the machine
// with what it was before.
//
// hack/installs.sh builds the packages and the Debian, and runs the tests. They need root.
package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/privileged"
)

// way is one way onto a machine. Each command is a shell script that runs on it in /test.
type way struct {
	name string
	// old and now install a version, and upgrade to it.
	old, now string
	// remove keeps data, and purge leaves nothing.
	remove, purge string
	// version prints the version that is installed.
	version string
}

var ways = []way{
	{
		name:    "deb",
		old:     "apt-get install -qq -y --no-install-recommends ./old/*.deb",
		now:     "apt-get install -qq -y --no-install-recommends ./now/*.deb",
		remove:  "apt-get remove -qq -y rik riklet rikctl",
		purge:   "apt-get purge -qq -y rik riklet rikctl",
		version: "dpkg-query -W -f '${Version}' riklet",
	},
	{
		name:    "rpm",
		old:     "rpm -U --nodeps ./old/*.rpm && systemctl enable -q --now rik",
		now:     "rpm -U --nodeps ./now/*.rpm && systemctl enable -q --now rik",
		remove:  "rpm -e --nodeps rik riklet rikctl",
		purge:   "rm -rf /var/lib/rik /var/lib/riklet /run/riklet /run/rik-network /etc/rik",
		version: "rpm -q --qf '%{VERSION}' riklet",
	},
	{
		name:    "archive",
		old:     "rm -rf unpacked && mkdir unpacked && tar xf old/*.tar.gz -C unpacked && unpacked/*/install.sh",
		now:     "rm -rf unpacked && mkdir unpacked && tar xf now/*.tar.gz -C unpacked && unpacked/*/install.sh",
		remove:  "rik uninstall --keep-data",
		purge:   "if command -v rik >/dev/null; then rik uninstall; else rm -rf /var/lib/rik /var/lib/riklet /etc/rik; fi",
		version: "ls unpacked | sed 's/^rik-//; s/-linux.*//'",
	},
}

// environment returns a variable that hack/test.sh sets.
func environment(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run this test with hack/installs.sh", name)
	}
	return value
}

// packagesOf copies the packages of a version to the machine.
func (m *machine) packagesOf(dir, name string) {
	m.Helper()
	to := filepath.Join(m.root, "test", name)
	if err := os.MkdirAll(to, 0o755); err != nil {
		m.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(found) == 0 {
		m.Fatalf("%s has no packages: %v", dir, err)
	}
	for _, file := range found {
		if strings.HasSuffix(file, ".deb") || strings.HasSuffix(file, ".rpm") || strings.HasSuffix(file, ".tar.gz") {
			m.host("cp", file, to)
		}
	}
}

// answers waits until the sample application answers over HTTP.
func (m *machine) answers() {
	m.Helper()
	m.eventually("curl -sf -m 5 http://127.0.0.1:30080/", "hello from hello-")
}

// instances returns the processes of the sample application, with the times of their starts.
func (m *machine) instances() string {
	m.Helper()
	return m.run("ps -eo pid=,lstart=,args= | grep '[/]hello -listen'")
}

// same fails the test unless the same processes run.
func (m *machine) same(what, before string) {
	m.Helper()
	m.answers()
	if diff := cmp.Diff(before, m.instances()); diff != "" {
		m.Errorf("%s touched instances:\n%s", what, diff)
	}
}

func TestPrivilegedPackages(t *testing.T) {
	privileged.Require(t)
	now, old, image := environment(t, "RIK_PACKAGES"), environment(t, "RIK_OLD_PACKAGES"), environment(t, "RIK_SAMPLE_IMAGE")
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			m := newMachine(t)
			before := m.snapshot()
			m.packagesOf(old, "old")
			m.packagesOf(now, "now")
			m.put(image)

			began := time.Now()
			m.run("cd /test && " + w.old)
			m.eventually("rikctl apply -f /test/hello.yaml", "hello")
			m.answers()
			t.Logf("%s: %.1f s from the installation to an HTTP answer", w.name, time.Since(began).Seconds())
			m.eventually("rikctl get instances", "1/1")
			m.eventually("ps -eo args= | grep -c '[/]hello -listen'", "2")
			first, running := m.run("cd /test && "+w.version), m.instances()

			// One connection stays open through the upgrade.
			m.run("setsid bash /test/keep.sh >/test/kept 2>&1 </dev/null & ")
			m.eventually("test -e /test/connected", "")
			m.run("cd /test && " + w.now)
			if second := m.run("cd /test && " + w.version); second == first {
				t.Errorf("the version is still %s after the upgrade", first)
			}
			m.same("the upgrade", running)
			m.run("touch /test/go")
			m.eventually("[ $(grep -c '200 OK' /test/kept) = 2 ] && echo kept", "kept")
			m.eventually("rikctl get nodes", "Ready")

			// The sample application of the documents, next to the one above.
			began = time.Now()
			m.run("rik demo --name sample --port 30090 && curl -sf http://127.0.0.1:30090/ | grep '^hello from sample-'")
			t.Logf("%s: %.1f s from rik demo to an HTTP answer", w.name, time.Since(began).Seconds())
			m.run("rik demo --name sample --down")
			m.same("the demo", running)

			for range 3 {
				m.run("systemctl kill --kill-who=main --signal=KILL rik")
				m.eventually("systemctl is-active rik", "active")
				m.eventually("rikctl get nodes", "Ready")
				m.same("kill -9 of the service", running)
			}
			m.run("systemctl restart rik")
			m.same("a restart of the service", running)
			m.eventually("rikctl get nodes", "Ready")

			m.reboot()
			m.answers()

			m.run("cd /test && " + w.remove)
			m.nothingRuns("the removal")
			m.run("test -e /var/lib/rik/data && test -e /var/lib/riklet")
			m.run("cd /test && " + w.now)
			m.answers()

			if w.name == "rpm" {
				m.run("cd /test && " + w.remove)
			}
			m.run("cd /test && " + w.purge)
			m.run("rm -rf /root/.rik; systemctl reset-failed")
			m.unchanged(before)
		})
	}
}

// unchanged fails the test unless the machine is what it was before.
func (m *machine) unchanged(before []string) {
	m.Helper()
	if diff := cmp.Diff(before, m.snapshot()); diff != "" {
		m.Errorf("the machine is not what it was before (-before +after):\n%s", diff)
	}
}

// nothingRuns checks that no process, mount, link, rule and cgroup of rik is left.
func (m *machine) nothingRuns(after string) {
	m.Helper()
	for _, line := range m.snapshot() {
		if kind, _, _ := strings.Cut(line, " "); kind != "file" && strings.Contains(line, "rik") {
			m.Errorf("after %s there is: %s", after, line)
		}
	}
}

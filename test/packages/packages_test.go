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
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/privileged"
)

// way is one way onto a machine. Each command is a shell script that runs on it in /test.
type way struct {
	name string
	// base is the machine's base system.
	base string
	// docker means that Docker runs a container on the machine already. Such a machine does not
	// reboot, because Docker then gives its containers other addresses and network devices.
	docker bool
	// old and now install a version, and upgrade to it.
	old, now string
	// remove keeps data, and purge leaves nothing.
	remove, purge string
	// removedFirst means that purge needs the programs to be removed before.
	removedFirst bool
	// version prints the version that is installed.
	version string
}

// deb is the way of Debian's packages.
var deb = way{
	name:    "deb",
	base:    plain,
	old:     "apt-get install -qq -y --no-install-recommends ./old/*.deb",
	now:     "apt-get install -qq -y --no-install-recommends ./now/*.deb",
	remove:  "apt-get remove -qq -y rik riklet rikctl",
	purge:   "apt-get purge -qq -y rik riklet rikctl",
	version: "dpkg-query -W -f '${Version}' riklet",
}

// nextToDocker returns the way on a machine where Docker runs a container already.
func (w way) nextToDocker() way {
	w.name, w.base, w.docker = w.name+" next to Docker", engines, true
	return w
}

var ways = []way{
	deb,
	deb.nextToDocker(),
	{
		name:         "rpm",
		base:         plain,
		old:          "rpm -U --nodeps ./old/*.rpm && systemctl enable -q --now rik",
		now:          "rpm -U --nodeps ./now/*.rpm && systemctl enable -q --now rik",
		remove:       "rpm -e --nodeps rik riklet rikctl",
		purge:        "rm -rf /var/lib/rik /var/lib/riklet /run/riklet /run/rik-network /etc/rik",
		removedFirst: true,
		version:      "rpm -q --qf '%{VERSION}' riklet",
	},
	{
		name:    "archive",
		base:    plain,
		old:     "rm -rf unpacked && mkdir unpacked && tar xf old/*.tar.gz -C unpacked && unpacked/*/install.sh",
		now:     "rm -rf unpacked && mkdir unpacked && tar xf now/*.tar.gz -C unpacked && unpacked/*/install.sh",
		remove:  "rik uninstall --keep-data",
		purge:   "rik uninstall",
		version: "ls unpacked | sed 's/^rik-//; s/-linux.*//'",
	},
	{
		// The programs are built already, and the machine has no compiler.
		name:    "source",
		base:    plain,
		old:     "make -s -C old/source -o build install && systemctl enable -q rik && systemctl restart rik",
		now:     "make -s -C now/source -o build install && systemctl enable -q rik && systemctl restart rik",
		remove:  "make -s -C now/source uninstall",
		purge:   "rik uninstall",
		version: "sha256sum /usr/local/lib/rik/rik",
	},
}

// environment returns a variable that hack/installs.sh sets.
func environment(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run this test with hack/installs.sh", name)
	}
	return value
}

// packagesOf copies the packages of a version and the folder of "make install" to the machine.
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
		if strings.HasSuffix(file, ".deb") || strings.HasSuffix(file, ".rpm") || strings.HasSuffix(file, ".tar.gz") || filepath.Base(file) == "source" {
			m.host("cp", "-r", file, to)
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
	return m.run("ps -eo pid=,lstart=,args= | grep '[/]hello -listen :8080'")
}

// same fails the test unless the same processes run.
func (m *machine) same(what, before string) {
	m.Helper()
	m.answers()
	if diff := cmp.Diff(before, m.instances()); diff != "" {
		m.Errorf("%s touched instances:\n%s", what, diff)
	}
}

// keep opens a connection to a port, which kept ends.
func (m *machine) keep(port, name string) {
	m.Helper()
	m.run("setsid bash /test/keep.sh " + port + " " + name + " >/test/" + name + ".kept 2>&1 </dev/null & ")
	m.eventually("test -e /test/"+name+".connected", "")
}

// kept fails the test unless a connection that keep opened still answers.
func (m *machine) kept(name string) {
	m.Helper()
	m.run("touch /test/" + name + ".go")
	m.eventually("[ $(grep -c '200 OK' /test/"+name+".kept) = 2 ] && echo kept", "kept")
}

func TestPrivilegedPackages(t *testing.T) {
	privileged.Require(t)
	for _, w := range ways {
		t.Run(w.name, w.test)
	}
}

func (w way) test(t *testing.T) {
	m := newMachineFrom(t, w.base, "test")
	m.packagesOf(environment(t, "RIK_OLD_PACKAGES"), "old")
	m.packagesOf(environment(t, "RIK_PACKAGES"), "now")
	m.put(environment(t, "RIK_SAMPLE_IMAGE"))
	var others *neighbor
	if w.docker {
		others = m.startDocker()
	}
	before := m.snapshot()

	w.install(m)
	running := m.instances()
	others.same("the installation")
	w.upgrade(m, running)
	others.same("the upgrade")
	m.demo(w.name, running)
	m.restarts(running)
	others.same("restarts of the service")
	if !w.docker {
		m.reboot()
		m.answers()
	}

	m.run("cd /test && " + w.remove)
	m.nothingRuns("the removal")
	m.run("test -e /var/lib/rik/data && test -e /var/lib/riklet")
	others.same("the removal")
	m.run("cd /test && " + w.now)
	m.answers()

	if w.removedFirst {
		m.run("cd /test && " + w.remove)
	}
	m.run("cd /test && " + w.purge)
	others.same("the purge")
	others.end()
	m.unchanged(before)
}

// install installs the earlier version and waits for the sample application.
func (w way) install(m *machine) {
	m.Helper()
	began := time.Now()
	m.run("cd /test && " + w.old)
	m.eventually("rikctl apply -f /test/hello.yaml", "hello")
	m.answers()
	m.Logf("%s: %.1f s from the installation to an HTTP answer", w.name, time.Since(began).Seconds())
	m.eventually("rikctl get instances", "1/1")
	m.eventually("ps -eo args= | grep -c '[/]hello -listen :8080'", "2")
}

// upgrade upgrades to the current version, while a connection to the application is open.
func (w way) upgrade(m *machine, running string) {
	m.Helper()
	first := m.run("cd /test && " + w.version)
	m.keep("30080", "application")
	m.run("cd /test && " + w.now)
	if second := m.run("cd /test && " + w.version); second == first {
		m.Errorf("the version is still %s after the upgrade", first)
	}
	// The service runs the new program, and not the removed one.
	m.run(`[ "$(stat -L -c %i "/proc/$(systemctl show -p MainPID --value rik)/exe")" = "$(stat -L -c %i "$(command -v rik)")" ]`)
	m.same("the upgrade", running)
	m.kept("application")
	m.eventually("rikctl get nodes", "Ready")
}

// demo runs the sample application of the documents, next to the test's own one.
func (m *machine) demo(way, running string) {
	m.Helper()
	began := time.Now()
	m.run("rik demo --name sample --port 30090 && curl -sf http://127.0.0.1:30090/ | grep '^hello from sample-'")
	m.Logf("%s: %.1f s from rik demo to an HTTP answer", way, time.Since(began).Seconds())
	m.run("rik demo --name sample --down")
	m.same("the demo", running)
}

// restarts kills the service and restarts it.
func (m *machine) restarts(running string) {
	m.Helper()
	for range 3 {
		m.run("systemctl kill --kill-who=main --signal=KILL rik")
		m.eventually("systemctl is-active rik", "active")
		m.eventually("rikctl get nodes", "Ready")
		m.same("kill -9 of the service", running)
	}
	m.run("systemctl restart rik")
	m.same("a restart of the service", running)
	m.eventually("rikctl get nodes", "Ready")
}

// unchanged fails the test unless the machine is what it was before. rikctl keeps a cache in the home
// directory of its user, which may not contain anything else.
func (m *machine) unchanged(before []string) {
	m.Helper()
	m.unchangedBut(before, nil)
}

// unchangedBut is unchanged for all lines of a snapshot that do not match. nil matches none.
func (m *machine) unchangedBut(before []string, but *regexp.Regexp) {
	m.Helper()
	m.run("rm -rf /root/.rik/cache; [ ! -e /root/.rik ] || rmdir /root/.rik; systemctl reset-failed")
	without := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return but != nil && but.MatchString(line) })
	}
	if diff := cmp.Diff(without(before), without(m.snapshot())); diff != "" {
		m.Errorf("the machine is not what it was before (-before +after):\n%s", diff)
	}
}

// nothingRuns checks that no process, mount, link, rule and cgroup of rik is left.
func (m *machine) nothingRuns(after string) {
	m.Helper()
	for _, line := range m.snapshot() {
		if kind, _, _ := strings.Cut(line, " "); kind != "file" && kind != "content" && kind != "unit" && strings.Contains(strings.ToLower(line), "rik") {
			m.Errorf("after %s there is: %s", after, line)
		}
	}
}

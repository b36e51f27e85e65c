package packages

import (
	"testing"

	"rik.dev/rik/internal/testkit/pages"
	"rik.dev/rik/internal/testkit/privileged"
)

// printedWay is one way onto a machine, with the commands as the pages print them.
type printedWay struct {
	name string
	// install is from docs/install.md, and the others are from docs/upgrade.md. remove keeps data, and
	// purge leaves nothing.
	install, upgrade, remove, purge string
	// removesFirst is for a purge that removes only data.
	removesFirst bool
	// version prints the version that is installed.
	version string
	// prepare makes a new machine one of this way.
	prepare func(m *machine)
}

func printedWays(install, upgrade *pages.Page) []printedWay {
	return []printedWay{
		{
			name: "deb", version: "dpkg-query -W -f '${Version}' riklet",
			install: install.Block("Debian and Ubuntu", 1), upgrade: upgrade.Block("Upgrade", 1),
			remove: upgrade.Block("Packages of Debian and Ubuntu", 1), purge: upgrade.Block("Packages of Debian and Ubuntu", 2),
		},
		{
			name: "rpm", version: "rpm -q --qf '%{VERSION}' riklet", prepare: (*machine).dnf,
			install: install.Block("Fedora and others with RPM", 1), upgrade: upgrade.Block("Upgrade", 2),
			remove: upgrade.Block("RPM packages", 1), purge: upgrade.Block("Data that was kept", 1), removesFirst: true,
		},
		{
			// The programs of both archives have the same version, but the files are others.
			name: "archive", version: "stat -Lc %i /usr/local/bin/rik",
			install: install.Block("An archive, on any Linux", 1), upgrade: upgrade.Block("Upgrade", 3),
			remove: upgrade.Block("The archive", 1), purge: upgrade.Block("The archive", 2),
		},
	}
}

// dnf installs dnf and makes it usable. It does not know Debian's packages, so its database gets a
// package without files that stands for Debian's iptables, which riklet depends on.
func (m *machine) dnf() {
	m.Helper()
	m.debian("dnf")
	m.run(`mkdir -p /test/rpm && cd /test/rpm && cat >iptables.spec <<'SPEC'
Name: iptables
Version: 1
Release: 1
Summary: stands for the package of Debian
License: none
BuildArch: noarch
%description
The files are those of Debian's package.
%files
SPEC
rpmbuild -bb --define '_topdir /test/rpm' iptables.spec && dnf install -y ./RPMS/noarch/iptables-*.rpm`)
}

// TestPrivilegedUpgradePage runs the commands of docs/upgrade.md as printed, on a machine where the commands of
// docs/install.md installed an earlier version. An application answers all the time until it is
// removed, and after a removal that keeps data and a new installation.
func TestPrivilegedUpgradePage(t *testing.T) {
	privileged.Require(t)
	now, old, image := environment(t, "RIK_PACKAGES"), environment(t, "RIK_OLD_PACKAGES"), environment(t, "RIK_SAMPLE_IMAGE")
	install, upgrade := pages.Open(t, "docs/install.md"), pages.Open(t, "docs/upgrade.md")
	checkNodes := upgrade.Block("Upgrade", 4)
	for _, w := range printedWays(install, upgrade) {
		t.Run(w.name, func(t *testing.T) {
			m := newMachine(t)
			if w.prepare != nil {
				w.prepare(m)
			}
			before := m.snapshot()
			m.packagesOf(old, "old")
			m.packagesOf(now, "now")
			m.put(image)
			m.run(printed("old", w.install))
			m.eventually("rikctl apply -f /test/hello.yaml", "hello")
			m.answers()
			m.eventually("rikctl get instances", "1/1")
			m.eventually("ps -eo args= | grep -c '[/]hello -listen'", "2")
			first, running := m.run(w.version), m.instances()

			m.asPrinted(w.upgrade)
			if second := m.run(w.version); second == first {
				t.Errorf("the version is still %s after the upgrade", first)
			}
			m.same("the upgrade", running)
			m.eventually(printed("now", checkNodes), "Ready")

			m.asPrinted(w.remove)
			m.nothingRuns("the removal")
			m.run("test -e /var/lib/rik/data && test -e /var/lib/riklet")
			m.asPrinted(w.install)
			m.answers()
			if w.removesFirst {
				m.asPrinted(w.remove)
			}
			m.asPrinted(w.purge)
			m.run("rm -rf /root/.rik; systemctl reset-failed")
			m.unchanged(before)
		})
	}
}

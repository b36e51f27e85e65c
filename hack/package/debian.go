package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"rik.dev/rik/internal/install/layout"
)

const maintainer = "The rik authors <maintainers@rik.dev>"

// copyright returns the copyright file in Debian's machine-readable format, version 1.0.
func copyright(p layout.Package, date time.Time) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: rik
Upstream-Contact: %s
Source: https://rik.dev/rik

Files: *
Copyright: %d The rik authors
License: Apache-2.0
Comment: The programs contain Go modules. third-party-licenses.gz in this directory
 has the name, the version and the licenses of each. The source of each module
 is available from the Go module proxy under that name and version.
`, maintainer, date.Year())
	kernel := os.Getenv("RIK_KERNEL_PACKAGE")
	if p == layout.Node {
		b.WriteString(`
Files: usr/lib/rik/runc
Copyright: The runc authors
License: Apache-2.0
Comment: The program is built from the module github.com/opencontainers/runc. It is
 linked with libseccomp (Copyright 2012-2023 The libseccomp authors, LGPL-2.1)
 and with the GNU C library (LGPL-2.1), from Debian's packages libseccomp and
 glibc. Their source is available from Debian.
`)
	}
	if p == layout.Node && kernel != "" {
		fmt.Fprintf(&b, `
Files: usr/lib/rik/guest/*
Copyright: Linus Torvalds and the authors of the Linux kernel
License: GPL-2
Comment: The kernel and its modules are those of Debian's package
 %s.
 Their source is Debian's source package "linux" of the same version, at
 https://snapshot.debian.org/package/linux/.
`, kernel)
	}
	b.WriteString(`
License: Apache-2.0
 On Debian systems, the complete text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
`)
	if p == layout.Node && kernel != "" {
		b.WriteString(`
License: GPL-2
 On Debian systems, the complete text of the GNU General Public License, version
 2, is in /usr/share/common-licenses/GPL-2.
`)
	}
	return []byte(b.String())
}

// changelog returns a change log in Debian's format. CHANGELOG.md has the changes themselves.
func changelog(p layout.Package, date time.Time) []byte {
	return fmt.Appendf(nil, "%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md in the source.\n\n -- %s  %s\n",
		p, envOr("RIK_PACKAGE_VERSION", "0"), maintainer, date.Format(time.RFC1123Z))
}

func envOr(name, other string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return other
}

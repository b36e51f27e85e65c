package doctor

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// packages are the names of a package by the tool that installs it.
type packages struct{ apt, dnf string }

// family returns which of the package managers the distribution has: "apt", "dnf" or "".
func (d Distribution) family() string {
	for _, id := range append([]string{d.ID}, d.Like...) {
		switch id {
		case "debian", "ubuntu":
			return "apt"
		case "fedora", "rhel", "centos", "rocky", "almalinux":
			return "dnf"
		}
	}
	return ""
}

// install returns the command that installs a package, or "" on an unknown distribution.
func (d Distribution) install(p packages) string {
	switch {
	case d.family() == "apt" && p.apt != "":
		return "apt-get install -y " + p.apt
	case d.family() == "dnf" && p.dnf != "":
		return "dnf install -y " + p.dnf
	}
	return ""
}

// sysctlFile has the settings that fixes make.
const sysctlFile = "/etc/sysctl.d/90-rik.conf"

// sysctl returns the command that changes a setting now and at each boot.
func sysctl(name, value string) string {
	return fmt.Sprintf("echo '%s = %s' >> %s && sysctl -w %s=%s", name, value, sysctlFile, name, value)
}

// plainWord matches words that mean the same to a shell without quotes.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9/._:=,@+%-]+$`)

// quote returns a word of a shell command.
func quote(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// steps joins commands of which each needs the ones before it.
func steps(commands ...string) string {
	return strings.Join(slices.DeleteFunc(commands, func(c string) bool { return c == "" }), " && ")
}

// dropIn returns the command that adds settings to a systemd unit and restarts it.
func dropIn(unit, name, setting string) string {
	dir := "/etc/systemd/system/" + unit + ".d"
	return steps("mkdir -p "+quote(dir), fmt.Sprintf(`printf '[Service]\n%s\n' > %s`, setting, quote(dir+"/"+name+".conf")),
		"systemctl daemon-reload", "systemctl restart "+quote(unit))
}

// bytes formats a size.
func bytesText(n uint64) string {
	const unit = 1024
	switch {
	case n >= unit*unit*unit:
		return fmt.Sprintf("%.1f GiB", float64(n)/(unit*unit*unit))
	case n >= unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/(unit*unit))
	default:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	}
}

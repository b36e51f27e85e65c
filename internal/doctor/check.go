package doctor

import "slices"

// Area is a part of a machine.
type Area string

// The areas.
const (
	AreaKernel       Area = "kernel"
	AreaCgroup       Area = "cgroup"
	AreaFirewall     Area = "firewall"
	AreaNetwork      Area = "network"
	AreaPorts        Area = "ports"
	AreaTime         Area = "time"
	AreaDisk         Area = "disk"
	AreaLimits       Area = "limits"
	AreaPrograms     Area = "programs"
	AreaCertificates Area = "certificates"
	AreaServer       Area = "server"
	AreaState        Area = "state"
	AreaHost         Area = "host"
)

// check is a function of the machine, and the IDs of the findings that it returns. A finding
// without an ID has the first one.
type check struct {
	area Area
	ids  []string
	run  func(*Machine) []Finding
}

// checks are all checks, in the order of the report.
var checks = []check{
	{AreaHost, []string{"host-root"}, checkRoot},
	{AreaKernel, []string{"kernel-version"}, checkKernelVersion},
	{AreaKernel, featureIDs(), checkFeatures},
	{AreaCgroup, []string{"cgroup-mode", "cgroup-controllers", "cgroup-delegation"}, checkCgroup},
	{AreaFirewall, []string{"firewall-iptables"}, checkIptables},
	{AreaFirewall, []string{"firewall-mixed"}, checkMixed},
	{AreaFirewall, []string{"firewall-forward"}, checkForward},
	{AreaFirewall, []string{"firewall-input"}, checkInput},
	{AreaFirewall, []string{"firewall-firewalld"}, checkFirewalld},
	{AreaNetwork, []string{"network-ip-forward"}, checkIPForward},
	{AreaNetwork, []string{"network-rp-filter"}, checkRPFilter},
	{AreaNetwork, []string{"network-ranges"}, checkRanges},
	{AreaNetwork, []string{"network-conntrack"}, checkConntrack},
	{AreaNetwork, []string{"network-overlay", "network-names"}, checkTroubles},
	{AreaPorts, []string{"port-api", "port-workers", "port-nodes", "port-names", "port-overlay"}, checkPorts},
	{AreaTime, []string{"time-synchronized"}, checkSynchronized},
	{AreaTime, []string{"time-skew"}, checkSkew},
	{AreaDisk, []string{"disk-space"}, checkSpace},
	{AreaDisk, []string{"disk-inodes"}, checkInodes},
	{AreaDisk, []string{"disk-filesystem"}, checkFileSystem},
	{AreaDisk, []string{"disk-options"}, checkMountOptions},
	{AreaLimits, []string{"limit-open-files"}, checkOpenFiles},
	{AreaLimits, []string{"limit-processes"}, checkProcesses},
	{AreaLimits, []string{"limit-pid-max"}, checkPIDMax},
	{AreaLimits, []string{"limit-inotify"}, checkInotify},
	{AreaLimits, []string{"limit-memlock"}, checkMemlock},
	{AreaPrograms, []string{"program-missing"}, checkMissingPrograms},
	{AreaPrograms, []string{"program-versions"}, checkVersions},
	{AreaPrograms, []string{"program-runc"}, checkRunc},
	{AreaPrograms, []string{"program-running"}, checkRunning},
	{AreaCertificates, []string{"certificate-validity"}, checkValidity},
	{AreaCertificates, []string{"certificate-name"}, checkNames},
	{AreaCertificates, []string{"certificate-permissions"}, checkPermissions},
	{AreaServer, []string{"server-address"}, checkServerAddress},
	{AreaServer, []string{"server-reachable"}, checkReachable},
	{AreaServer, []string{"server-certificate"}, checkServerCertificate},
	{AreaServer, []string{"server-version"}, checkServerVersion},
	{AreaState, []string{"state-leftover"}, checkLeftover},
	{AreaHost, []string{"host-name"}, checkHostName},
	{AreaHost, []string{"host-dns"}, checkDNS},
	{AreaHost, []string{"host-swap"}, checkSwap},
	{AreaHost, []string{"host-selinux"}, checkSELinux},
	{AreaHost, []string{"host-apparmor"}, checkAppArmor},
	{AreaHost, []string{"host-engine"}, checkEngines},
}

// selected reports whether a check can return findings with one of some names. Without names, all
// checks are selected.
func (c check) selected(only []string) bool {
	return len(only) == 0 || slices.ContainsFunc(only, func(name string) bool {
		return name == string(c.area) || slices.Contains(c.ids, name)
	})
}

func unknownNames(only []string) []string {
	return slices.DeleteFunc(slices.Clone(only), func(name string) bool {
		return slices.ContainsFunc(checks, func(c check) bool { return c.selected([]string{name}) })
	})
}

// Areas returns the names of all areas, sorted.
func Areas() []string {
	var names []string
	for _, c := range checks {
		names = append(names, string(c.area))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// IDs returns the IDs of all findings, in the order of the checks.
func IDs() []string {
	var ids []string
	for _, c := range checks {
		ids = append(ids, c.ids...)
	}
	return ids
}

// ok returns the single finding of a check that found nothing wrong.
func ok(message string) []Finding { return []Finding{{Severity: OK, Message: message}} }

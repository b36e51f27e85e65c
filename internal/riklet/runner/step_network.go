package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/runner/spec"
)

// network connects the supervisor's network namespace to the node's network. It is the last step
// before the containers start, because it writes their network files.
func (b *build) network(ctx context.Context) error {
	d, uid := b.d, b.Instance.UID
	if !d.networked(b.Instance.Template) {
		return nil
	}
	a, err := d.cfg.Network.Attach(ctx, uid, b.Supervisor.PID())
	if err != nil {
		return err
	}
	hosts := spec.Hosts(engine.Hostname(b.Instance), a.Address.Addr().String())
	if err := b.files(hosts, resolver(a, b.Instance.Namespace, hostSearch(d.cfg.Resolver))); err != nil {
		return err
	}
	if err := engine.WriteJSON(d.paths.NetworkFile(uid), a); err != nil {
		return err
	}
	b.Attachment = &a
	return nil
}

// leaveNetwork detaches the instance from the network, whether or not it was attached.
func (b *build) leaveNetwork(ctx context.Context) error {
	if !b.d.networked(b.Instance.Template) {
		return nil
	}
	if err := os.Remove(b.d.paths.NetworkFile(b.Instance.UID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return b.d.cfg.Network.Detach(ctx, b.Instance.UID)
}

// resolver renders the instance's /etc/resolv.conf. With ndots:2, "workload" and
// "workload.namespace" are looked up in the cluster first, and then in the host's search domains.
// A name with two dots is most likely an external name, so it is looked up as it is.
func resolver(a instance.Attachment, namespace string, host []string) string {
	var b strings.Builder
	b.WriteString("# written by rik; changes are lost when the instance ends\n")
	fmt.Fprintf(&b, "nameserver %s\n", a.DNS)
	if a.Domain == "" || !engine.ValidName(namespace) {
		return b.String()
	}
	search := []string{namespace + "." + a.Domain, instance.ShortNames + "." + a.Domain}
	size := len(strings.Join(search, " "))
	for _, domain := range host {
		if size += len(domain) + 1; len(search) == maxSearch || size > maxSearchSize {
			break
		}
		if !slices.Contains(search, domain) {
			search = append(search, domain)
		}
	}
	fmt.Fprintf(&b, "search %s\noptions ndots:2\n", strings.Join(search, " "))
	return b.String()
}

// Limits of the search list: the number of domains and their total bytes, as for the Pods of a
// kubelet.
const (
	maxSearch     = 32
	maxSearchSize = 2048
)

// searchDomain matches a domain that is valid in a search list. A host may have the root domain
// there, which is useless for an instance.
var searchDomain = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`)

// hostSearch returns the host's search domains from its resolv.conf(5). The last search or domain
// line counts.
func hostSearch(path string) (domains []string) {
	for line := range strings.Lines(engine.ReadOr(path, "")) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "search" && fields[0] != "domain" {
			continue
		}
		domains = nil
		for _, d := range fields[1:] {
			if d = strings.TrimSuffix(d, "."); searchDomain.MatchString(d) {
				domains = append(domains, d)
			}
		}
	}
	return domains
}

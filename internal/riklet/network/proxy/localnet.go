package proxy

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// sysctls is the directory of the settings in the namespace of the reader.
const sysctls = "/proc/sys/net/ipv4/conf"

// noteBegins is the start of the rule comment that lists opened links, see Input.Opened.
const noteBegins = "route_localnet of "

var (
	note = regexp.MustCompile(`--comment "` + noteBegins + `([^"]*)"`)
	// plain matches the link names that the comment can contain. Other link names are possible.
	plain = regexp.MustCompile(`^[A-Za-z0-9@:_.-]{1,15}$`)
)

// maxLinks is how many links fit into the comment, which the kernel limits to 255 characters.
const maxLinks = 12

// localnet allows the node's own connections to 127.0.0.1 to leave through links to instances.
// The kernel drops such packets unless route_localnet is set for the link.
type localnet struct {
	dir string
	// opened are the links on which rik has set route_localnet, in this process or, according to
	// the comment, in an earlier one. Links on which another program has set it are left alone.
	opened map[string]bool
}

func newLocalnet(dir string) *localnet { return &localnet{dir: dir, opened: map[string]bool{}} }

// readComment parses the comment in the rules of an earlier process.
func (l *localnet) readComment(rules []string) {
	for _, rule := range rules {
		if m := note.FindStringSubmatch(rule); m != nil {
			for link := range strings.FieldsSeq(m[1]) {
				if link != "." && link != ".." && plain.MatchString(link) {
					l.opened[link] = true
				}
			}
		}
	}
}

// plan returns the links that rik opens, including those that are already open.
func (l *localnet) plan(links []string) []string {
	all := maps.Clone(l.opened)
	for _, link := range links {
		if link == "." || link == ".." || !plain.MatchString(link) {
			continue
		}
		// A missing link may appear later. If the value is set, another program has set it.
		if value, err := os.ReadFile(l.path(link)); err == nil && strings.TrimSpace(string(value)) == "0" {
			all[link] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(all))
	return sorted[:min(len(sorted), maxLinks)]
}

// open sets route_localnet for planned links, after the kernel has the comment.
func (l *localnet) open(links []string) error {
	var errs []error
	for _, link := range links {
		l.opened[link] = true
		value, err := os.ReadFile(l.path(link))
		if err == nil && strings.TrimSpace(string(value)) == "0" {
			err = os.WriteFile(l.path(link), []byte("1"), 0o644)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("allowing connections from 127.0.0.1 out of %s: %w", link, err))
		}
	}
	return errors.Join(errs...)
}

// restore resets route_localnet on the links that rik opened.
func (l *localnet) restore() error {
	var errs []error
	for _, link := range slices.Sorted(maps.Keys(l.opened)) {
		// Do not create the file: if it is missing, the link no longer exists.
		f, err := os.OpenFile(l.path(link), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("0")
			err = errors.Join(err, f.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("forbidding connections from 127.0.0.1 out of %s again: %w", link, err))
			continue
		}
		delete(l.opened, link)
	}
	return errors.Join(errs...)
}

func (l *localnet) path(link string) string { return filepath.Join(l.dir, link, "route_localnet") }

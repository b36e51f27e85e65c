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

// sysctls is where the kernel shows the settings of the reader's own namespace.
const sysctls = "/proc/sys/net/ipv4/conf"

// noteBegins is how the note about opened links begins; see Input.Opened.
const noteBegins = "route_localnet of "

var (
	note = regexp.MustCompile(`--comment "` + noteBegins + `([^"]*)"`)
	// plain are the names of links that a note can hold. A link may have any other.
	plain = regexp.MustCompile(`^[A-Za-z0-9@:_.-]{1,15}$`)
)

// mostLinks fit into a note: the kernel takes 255 characters.
const mostLinks = 12

// localnet lets connections of the node's own to 127.0.0.1 leave through links to
// instances: the kernel drops such packets unless route_localnet allows them, link
// by link.
type localnet struct {
	dir string
	// opened are the links that we allowed it, in this life or, by the note that was
	// found, in an earlier one. Where somebody else did it is left alone.
	opened map[string]bool
}

func newLocalnet(dir string) *localnet { return &localnet{dir: dir, opened: map[string]bool{}} }

// remember reads the note in rules of an earlier life.
func (l *localnet) remember(rules []string) {
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

// plan says which links are ours to open, those included that already are.
func (l *localnet) plan(links []string) []string {
	all := maps.Clone(l.opened)
	for _, link := range links {
		if link == "." || link == ".." || !plain.MatchString(link) {
			continue
		}
		// One that is not there comes later, and one that is set is somebody else's.
		if value, err := os.ReadFile(l.path(link)); err == nil && strings.TrimSpace(string(value)) == "0" {
			all[link] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(all))
	return sorted[:min(len(sorted), mostLinks)]
}

// open sets it for planned links, after they were noted in the kernel.
func (l *localnet) open(links []string) error {
	var errs []error
	for _, link := range links {
		l.opened[link] = true
		value, err := os.ReadFile(l.path(link))
		if err == nil && strings.TrimSpace(string(value)) == "0" {
			err = os.WriteFile(l.path(link), []byte("1"), 0o644)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("letting connections to 127.0.0.1 out at %s: %w", link, err))
		}
	}
	return errors.Join(errs...)
}

// restore takes it back from the links that we opened.
func (l *localnet) restore() error {
	var errs []error
	for _, link := range slices.Sorted(maps.Keys(l.opened)) {
		// Not made when it is missing: this is no file, and the link is gone.
		f, err := os.OpenFile(l.path(link), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("0")
			err = errors.Join(err, f.Close())
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("keeping connections to 127.0.0.1 in at %s again: %w", link, err))
			continue
		}
		delete(l.opened, link)
	}
	return errors.Join(errs...)
}

func (l *localnet) path(link string) string { return filepath.Join(l.dir, link, "route_localnet") }

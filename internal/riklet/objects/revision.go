package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/atomicfile"
	"rik.dev/rik/internal/rpc/nodev1"
)

// fileSuffix marks the files that the store may remove.
const fileSuffix = ".revision"

// revision is what is known about one template.
type revision struct {
	template *rikv1alpha1.InstanceTemplate
	missing  bool // it is not on disk
	pending  bool // requested, and no answer yet
	err      error
	failures int
	retryAt  time.Time // when to request it again after err
}

// Revision returns a template if it is in memory or on disk. Otherwise it requests the template
// and returns nil and the controller's last error, or nil and nil if there is none yet. Changed
// is called after the answer. The template must not be changed.
func (s *Store) Revision(namespace, name string) (*rikv1alpha1.InstanceTemplate, error) {
	key := Key{nodev1.Kind_KIND_REVISION, namespace, name}
	s.mu.Lock()
	r := s.revisions[key]
	if r == nil {
		r = &revision{}
		s.revisions[key] = r
	}
	looked := r.template != nil || r.missing
	s.mu.Unlock()
	if !looked {
		s.look(key, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.template != nil {
		return r.template, nil
	}
	if !r.pending && (r.err == nil || !time.Now().Before(r.retryAt)) {
		r.pending = true
		s.askLocked(key)
	}
	return nil, r.err
}

// Retry returns when a template that could not be fetched must be requested again. It returns the
// zero time if there is none. The caller then calls Revision.
func (s *Store) Retry() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var first time.Time
	for _, r := range s.revisions {
		if r.template == nil && !r.pending && r.err != nil && (first.IsZero() || r.retryAt.Before(first)) {
			first = r.retryAt
		}
	}
	return first
}

// look reads the disk, without the lock.
func (s *Store) look(key Key, r *revision) {
	template, err := s.load(key)
	if err != nil {
		// The controller has it as well.
		s.cfg.Logger.Warn("a saved revision cannot be read", "revision", key.Namespace+"/"+key.Name, "err", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.template == nil {
		r.template, r.missing = template, template == nil
	}
}

func (s *Store) deliverRevision(key Key, object *nodev1.Object) {
	template, err := decode(object)
	s.mu.Lock()
	r := s.revisions[key]
	if r == nil {
		s.mu.Unlock()
		return // no longer wanted
	}
	news := r.template == nil
	r.pending = false
	if err != nil {
		r.err = err
		r.retryAt = time.Now().Add(min(firstRetry<<min(r.failures, 10), maxRetry))
		r.failures++
	} else if news {
		r.template, r.err = template, nil
	}
	s.mu.Unlock()
	if news {
		s.cfg.Changed()
	}
	if news && err == nil {
		// After the notification: a start does not wait for the disk.
		if err := s.save(key, object); err != nil {
			s.cfg.Logger.Warn("a revision was not saved", "revision", key.Namespace+"/"+key.Name, "err", err)
		}
	}
}

func decode(object *nodev1.Object) (*rikv1alpha1.InstanceTemplate, error) {
	if object.GetError() != "" {
		return nil, fmt.Errorf("the controller answered: %s", object.GetError())
	}
	if !object.GetFound() {
		return nil, errors.New("the controller does not have this revision")
	}
	template := &rikv1alpha1.InstanceTemplate{}
	if err := template.Unmarshal(object.GetData()); err != nil {
		return nil, fmt.Errorf("decoding the revision: %w", err)
	}
	return template, nil
}

// Retain removes the templates that are not in use, also from disk. The caller must have the
// complete list of instances.
func (s *Store) Retain(inUse func(namespace, name string) bool) error {
	files, err := os.ReadDir(s.cfg.Dir)
	if err != nil {
		return fmt.Errorf("listing saved revisions: %w", err)
	}
	s.mu.Lock()
	for key := range s.revisions {
		if !inUse(key.Namespace, key.Name) {
			delete(s.revisions, key)
		}
	}
	s.mu.Unlock()
	var problems []error
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), fileSuffix) {
			continue
		}
		path := filepath.Join(s.cfg.Dir, f.Name())
		object, err := readObject(path)
		if err == nil && inUse(object.GetNamespace(), object.GetName()) {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = append(problems, fmt.Errorf("removing a saved revision: %w", err))
		}
	}
	return errors.Join(problems...)
}

// file returns the path for a template. The path never contains a name that came over the
// network.
func (s *Store) file(key Key) string {
	sum := sha256.Sum256([]byte(key.Namespace + "/" + key.Name))
	return filepath.Join(s.cfg.Dir, hex.EncodeToString(sum[:])+fileSuffix)
}

// save saves the whole object, so that its name can be checked when it is read.
func (s *Store) save(key Key, object *nodev1.Object) error {
	text, err := proto.Marshal(object)
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	return atomicfile.Write(s.file(key), text)
}

// load returns nil without an error if nothing is saved.
func (s *Store) load(key Key) (*rikv1alpha1.InstanceTemplate, error) {
	object, err := readObject(s.file(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if object.GetNamespace() != key.Namespace || object.GetName() != key.Name {
		return nil, fmt.Errorf("it belongs to %s/%s", object.GetNamespace(), object.GetName())
	}
	return decode(object)
}

func readObject(path string) (*nodev1.Object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading a saved revision: %w", err)
	}
	object := &nodev1.Object{}
	if err := proto.Unmarshal(text, object); err != nil {
		return nil, fmt.Errorf("decoding a saved revision: %w", err)
	}
	return object, nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("creating the directory of revisions: %w", err)
	}
	return nil
}

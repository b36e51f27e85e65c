package image

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"rik.dev/rik/internal/lockfile"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Limits bound one pull; a zero field takes the default that is written there.
type Limits = wire.Limits

// Defaults of Limits.
const (
	DefaultTime    = wire.DefaultTime
	DefaultStall   = wire.DefaultStall
	DefaultEntries = wire.DefaultEntries
)

// Config says where the store is and how it pulls.
type Config struct {
	// Root is an absolute directory, on a file system that overlayfs can use
	// for its upper layer. It is made when it is missing.
	Root string
	// Unpacker is the command line of the child process that runs
	// unpack.Unpack: the program rik-unpack.
	Unpacker []string
	// Limits bound each pull.
	Limits Limits
	// Logger gets progress and what was left out; nil discards it.
	Logger *slog.Logger
	// CertDir has a directory host[:port] with certificates for each registry
	// that needs its own; "" means /etc/containers/certs.d.
	CertDir string
	// RegistriesConf is a containers-registries.conf(5) with mirrors and the
	// like; "" means the system's.
	RegistriesConf string
	// AuthFile has credentials for registries, as docker login writes them, that every pull
	// without a secret of its own uses; "" means none.
	AuthFile string
	// AllowNetworks are networks that a pull may connect to whatever they are. Without
	// them it reaches public addresses, those of private networks where a registry is,
	// and what CertDir and RegistriesConf name.
	AllowNetworks []netip.Prefix
}

// Validate reports every problem of the configuration.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/" {
		errs = append(errs, fmt.Errorf("root %q is not an absolute path below /", c.Root))
	}
	// These separate the options and layers of an overlay.
	if strings.ContainsAny(c.Root, ":,\\ \t\n\"") {
		errs = append(errs, fmt.Errorf("root %q has a character that mount options cannot carry", c.Root))
	}
	if len(c.Unpacker) == 0 {
		errs = append(errs, errors.New("unpacker is empty"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return nil
}

// Image is an image that the node has.
type Image struct {
	Reference string // as it was asked for, in canonical form
	Digest    string // of the manifest, or of the index it was chosen from
	Config    v1.ImageConfig
	Layers    []string // directories, lowest first
	// Architecture as Go names it; empty: the node's.
	Architecture string
}

// Info describes an image in a listing.
type Info struct {
	Reference string
	Digest    string
	Bytes     int64 // unpacked, shared layers included
	LastUsed  time.Time
}

// Store is the images of a node. All its methods may be called at once.
type Store struct {
	cfg  Config
	log  *slog.Logger
	lock *lockfile.Lock
	now  func() time.Time

	pulls sync.WaitGroup

	// files is held while a record's file is made to follow the record, so
	// that the last write is of the last state. It is taken before mu.
	files sync.Mutex

	// mu also orders the renaming of layers that are collected against the
	// checks that they are there. Nothing slower than stat or rename happens
	// under it. Records are replaced, never changed.
	mu      sync.Mutex
	closed  bool
	records map[string]*record       // by reference
	pins    map[digest.Digest]int    // layers of running pulls
	flights map[flightKey]*flight    // running pulls
	mounts  map[string]mountRecord   // by mount name
	busy    map[string]chan struct{} // mount names that a call works on
}

// Open takes the store at cfg.Root, and removes what a crash left half done.
// Mounts stay as they are. Close releases the store; the end of the process
// does too.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg:     cfg,
		log:     cfg.Logger,
		now:     time.Now,
		records: map[string]*record{},
		pins:    map[digest.Digest]int{},
		flights: map[flightKey]*flight{},
		mounts:  map[string]mountRecord{},
		busy:    map[string]chan struct{}{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.cfg.Root = filepath.Clean(cfg.Root)
	// 0700: layers have setuid programs in them, of any age.
	for _, dir := range []string{"", imagesDir, layersDir, mountsDir, tmpDir} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("making the image store: %w", err)
		}
	}
	if err := s.takeLock(); err != nil {
		return nil, err
	}
	if err := errors.Join(s.sweep(), s.loadRecords(), s.loadMounts()); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Directories of the store.
const (
	imagesDir = "images"
	layersDir = "layers"
	mountsDir = "mounts"
	tmpDir    = "tmp"
)

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Root}, parts...)...)
}

func (s *Store) takeLock() error {
	lock, err := lockfile.Take(s.path("lock"))
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		return fmt.Errorf("%w by %s: %s", ErrLocked, held.By, s.cfg.Root)
	}
	if err != nil {
		return fmt.Errorf("locking the image store: %w", err)
	}
	s.lock = lock
	return nil
}

// Close ends running pulls and releases the directory; mounts stay.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, f := range s.flights {
		f.cancel(errClosed)
	}
	s.mu.Unlock()
	s.pulls.Wait()
	return s.lock.Release()
}

var errClosed = errors.New("image store closed")

// sweep removes the remains of pulls and of collections.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.path(tmpDir))
	if err != nil {
		return fmt.Errorf("reading the image store: %w", err)
	}
	for _, e := range entries {
		s.log.Info("removing what an interrupted pull left", "path", e.Name())
		if err := os.RemoveAll(s.path(tmpDir, e.Name())); err != nil {
			return fmt.Errorf("sweeping the image store: %w", err)
		}
	}
	return nil
}

// layerDirs are the directories of a chain's layers.
func (s *Store) layerDirs(chain []digest.Digest) ([]string, error) {
	dirs := make([]string, len(chain))
	for i, c := range chain {
		name, err := wire.LayerDir(c)
		if err != nil {
			return nil, err
		}
		dirs[i] = s.path(layersDir, name, wire.ContentDir)
	}
	return dirs, nil
}

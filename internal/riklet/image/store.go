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
	"rik.dev/rik/internal/riklet/flight"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Limits limits one pull. The zero value of a field means the default in its comment.
type Limits = wire.Limits

// Defaults of Limits.
const (
	DefaultTime    = wire.DefaultTime
	DefaultStall   = wire.DefaultStall
	DefaultEntries = wire.DefaultEntries
)

// Config configures the store and its pulls.
type Config struct {
	// Root is an absolute directory, on a file system that overlayfs can use for its upper
	// layer. It is created if it does not exist.
	Root string
	// Unpacker is the command line of the child process, the program rik-unpack, which runs
	// unpack.Unpack.
	Unpacker []string
	// Limits limits each pull.
	Limits Limits
	// Logger reports progress and skipped entries; nil discards.
	Logger *slog.Logger
	// CertDir has a directory host[:port] with certificates for each registry that needs its
	// own; "" means /etc/containers/certs.d.
	CertDir string
	// RegistriesConf is a containers-registries.conf(5) with mirrors and other settings; ""
	// means the system's.
	RegistriesConf string
	// AuthFile has credentials for registries in the format of docker login. Every pull without
	// a secret of its own uses them; "" means none.
	AuthFile string
	// RegistriesDir is a directory that may have registries.conf, certs.d and auth.json. Each of them
	// is used if it exists and the field above is empty. Pulls read all of these files again.
	RegistriesDir string
	// AllowNetworks lists networks that pulls may always connect to. Other pulls reach public
	// addresses, private networks if the registry is in one, and the registries that CertDir and
	// RegistriesConf name.
	AllowNetworks []netip.Prefix
}

// Validate reports every problem of the configuration.
func (c Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.Root) || filepath.Clean(c.Root) == "/" {
		errs = append(errs, fmt.Errorf("root %q is not an absolute path below /", c.Root))
	}
	// These characters separate the options and layers of an overlay mount.
	if strings.ContainsAny(c.Root, ":,\\ \t\n\"") {
		errs = append(errs, fmt.Errorf("root %q has a character that mount options cannot contain", c.Root))
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
	Reference string // as requested, in canonical form
	Digest    string // of the manifest, or of the index that selected it
	Config    v1.ImageConfig
	Layers    []string // directories, lowest first
	// Architecture as Go names it; empty means the node's.
	Architecture string
}

// Info is an entry in a list of images.
type Info struct {
	Reference string
	Digest    string
	Bytes     int64 // unpacked, shared layers included
	LastUsed  time.Time
	Imported  bool // from an archive; only Remove removes it
}

// Store manages the images of a node. It is safe for concurrent use.
type Store struct {
	cfg  Config
	log  *slog.Logger
	lock *lockfile.Lock
	now  func() time.Time

	pulls *flight.Group[pullKey, *record]

	// files is held while the file of a record is written, so that the last write has the last
	// state. Lock it before mu.
	files sync.Mutex

	// mu also orders the renames of removed layers relative to the checks that layers exist. No
	// operation slower than stat or rename happens under it. Records are replaced, never
	// changed.
	mu      sync.Mutex
	records map[string]*record       // by reference
	pins    map[digest.Digest]int    // layers of running pulls
	mounts  map[string]mountRecord   // by mount name
	busy    map[string]chan struct{} // mount names with a call in progress
	// loading is closed when the archives of LoadArchives are loaded. It is nil if there are none.
	loading chan struct{}
}

// Open opens the store at cfg.Root, and removes what a crash left incomplete. Mounts stay as
// they are. Close releases the store, and so does the end of the process.
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
		pulls:   flight.New[pullKey, *record](errClosed),
		mounts:  map[string]mountRecord{},
		busy:    map[string]chan struct{}{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.cfg.Root = filepath.Clean(cfg.Root)
	// 0700, because layers contain setuid programs, also old ones with known vulnerabilities.
	for _, dir := range []string{"", imagesDir, layersDir, mountsDir, tmpDir} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("creating the image store: %w", err)
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
		return fmt.Errorf("%w by %s: %s; stop that process first", ErrLocked, held.By, s.cfg.Root)
	}
	if err != nil {
		return fmt.Errorf("locking the image store: %w", err)
	}
	s.lock = lock
	return nil
}

// Close ends running pulls and releases the directory. Mounts stay.
func (s *Store) Close() error {
	s.pulls.Close()
	return s.lock.Release()
}

var errClosed = errors.New("image store closed")

// sweep removes the files of interrupted pulls and collections.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.path(tmpDir))
	if err != nil {
		return fmt.Errorf("reading the image store: %w", err)
	}
	for _, e := range entries {
		s.log.Info("removing temporary files of an interrupted pull", "path", e.Name())
		if err := os.RemoveAll(s.path(tmpDir, e.Name())); err != nil {
			return fmt.Errorf("removing temporary files from the image store: %w", err)
		}
	}
	return nil
}

// layerDirs returns the directories of a chain's layers.
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

// Package caches opens the node's caches of the files that instances are made of: images, the disks
// of microVMs, and the archives of Apps. It decides where they are, and which files are removed when
// the disk is nearly full.
package caches

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"rik.dev/rik/internal/riklet/archive"
	"rik.dev/rik/internal/riklet/disk"
	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
)

// The directories of the caches in the state directory.
const (
	imagesDir   = "images"
	disksDir    = "disks"
	archivesDir = "apps"
)

// LayersDir is the directory of the images' layers in the state directory. A node creates it before
// any other file that can be distinguished from the files of other programs.
var LayersDir = filepath.Join(imagesDir, "layers")

// Config configures the caches.
type Config struct {
	// StateDir has the caches. Downloads cannot read StateDir and RunDir.
	StateDir, RunDir string
	// ImageDir has image archives, which Load loads; "" for none.
	ImageDir string
	// Unpacker is the path of rik-unpack.
	Unpacker string
	// MicroVMs opens the cache of disks.
	MicroVMs bool
	// Limits limits each pull of an image and each download of a Function. Its times also limit the
	// downloads of Apps.
	Limits image.Limits
	// AllowHTTP allows downloads of Functions and Apps without TLS. AllowNetworks are private
	// networks for those downloads and for images.
	AllowHTTP     bool
	AllowNetworks []netip.Prefix
	// These are as in image.Config.
	RegistriesDir, RegistriesConf, AuthFile, CertDir string

	Logger *slog.Logger
}

// Caches are the open caches of a node.
type Caches struct {
	Images *image.Store
	// Disks is nil if the node runs no microVMs.
	Disks    *disk.Dir
	Archives *archive.Dir

	load func(context.Context) map[string]error // nil without Config.ImageDir
}

// Open opens the caches.
func Open(c Config) (*Caches, error) {
	opened := &Caches{}
	if err := opened.open(c); err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return opened, nil
}

func (s *Caches) open(c Config) (err error) {
	s.Images, err = image.Open(image.Config{
		Root: filepath.Join(c.StateDir, imagesDir), Unpacker: []string{c.Unpacker}, Limits: c.Limits,
		RegistriesDir: c.RegistriesDir, RegistriesConf: c.RegistriesConf, AuthFile: c.AuthFile, CertDir: c.CertDir, AllowNetworks: c.AllowNetworks, Logger: c.Logger,
	})
	if err != nil {
		return err
	}
	if c.ImageDir != "" {
		s.load = s.Images.LoadArchives(c.ImageDir)
	}
	private, limits := []string{c.StateDir, c.RunDir}, downloads(c.Limits)
	if c.MicroVMs {
		s.Disks, err = disk.New(disk.Config{
			Root: filepath.Join(c.StateDir, disksDir), Images: s.Images, Unpacker: []string{c.Unpacker},
			AllowHTTP: c.AllowHTTP, AllowNetworks: c.AllowNetworks, AllowPath: true, Private: private, Limits: limits, Logger: c.Logger,
		})
		if err != nil {
			return err
		}
	}
	s.Archives, err = archive.New(archive.Config{
		Root: filepath.Join(c.StateDir, archivesDir), Unpacker: []string{c.Unpacker},
		AllowHTTP: c.AllowHTTP, AllowNetworks: c.AllowNetworks, Private: private, Logger: c.Logger,
		// An App is a program with its files, so the limits for the sizes of images do not apply.
		Limits: fetch.Limits{Time: limits.Time, Stall: limits.Stall},
	})
	return err
}

// downloads returns the limits of pulls in the form for other downloads.
func downloads(l image.Limits) fetch.Limits {
	return fetch.Limits{Bytes: l.Bytes, Entries: l.Entries, DownloadBytes: l.CompressedBytes, Time: l.Time, Stall: l.Stall}
}

// Close closes the caches that are open.
func (s *Caches) Close() error {
	var errs []error
	if s.Archives != nil {
		errs = append(errs, s.Archives.Close())
	}
	if s.Disks != nil {
		errs = append(errs, s.Disks.Close())
	}
	if s.Images != nil {
		errs = append(errs, s.Images.Close())
	}
	return errors.Join(errs...)
}

// References returns the references of the images.
func (s *Caches) References() []string {
	infos := s.Images.Images()
	references := make([]string, len(infos))
	for i := range infos {
		references[i] = infos[i].Reference
	}
	return references
}

// The policy for collecting images. When the disk is nearly full, images that were unused for a day
// are removed. Under disk pressure, images that were unused for a minute are removed.
const (
	collectAge, collectPressureAge = 24 * time.Hour, time.Minute
	collectHigh, collectLow        = 85, 80
)

func policy(pressure bool, now time.Time) image.CollectPolicy {
	if pressure {
		return image.CollectPolicy{MinAge: collectPressureAge, Now: now}
	}
	return image.CollectPolicy{MinAge: collectAge, HighPercent: collectHigh, LowPercent: collectLow, Now: now}
}

// Collect removes unused files: old ones if the disk is nearly full, or under disk pressure as many
// as possible. It removes files that depend on images before the images.
func (s *Caches) Collect(ctx context.Context, pressure bool) (freedBytes int64, err error) {
	p := policy(pressure, time.Now())
	errs := []error{s.Archives.Collect(ctx, p.MinAge)}
	if s.Disks != nil {
		errs = append(errs, s.Disks.Collect(ctx, p.MinAge))
	}
	freed, err := s.Images.Collect(ctx, p)
	return freed, errors.Join(append(errs, err)...)
}

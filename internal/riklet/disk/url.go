package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rik.dev/rik/internal/riklet/fetch"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/progress"
)

// seen is the record of a URL: its content, and the validators with which to ask whether it has
// changed.
type seen struct {
	Key        string
	Validators fetch.Validators
}

// FromURL implements Store. The key of the image is the checksum of the download, so two URLs
// with the same content share it, and a URL whose content changes gets a new one.
func (d *Dir) FromURL(ctx context.Context, user string, r URLRequest) (*Image, error) {
	if r.SHA256 != "" {
		sum, err := fetch.CheckSHA256(r.SHA256)
		if err != nil {
			return nil, d.reason(err)
		}
		r.SHA256 = sum
	}
	if img, ok := d.held(user, r.SHA256); ok {
		return img, nil
	}
	// A collection between the download and the pin may remove the image.
	const attempts = 3
	for range attempts {
		key, err := d.flights.Do(ctx, r.SHA256+" "+r.URL, func(ctx context.Context) (string, error) {
			return d.obtain(ctx, r)
		})
		if err != nil {
			return nil, d.reason(err)
		}
		dir, ok, err := d.cache.Pin(user, key)
		if err != nil {
			return nil, err
		}
		if ok {
			return open(dir, "sha256:"+strings.TrimPrefix(key, urlPrefix))
		}
	}
	return nil, fmt.Errorf("the block image of %s was removed again each time it was created; check what removes files from the cache", fetch.Redact(r.URL))
}

// held returns the image with which the user's machine was created. A restarted machine gets the
// same image, even if the URL has changed.
func (d *Dir) held(user, sum string) (*Image, bool) {
	for _, key := range d.cache.Held(user) {
		has, ok := strings.CutPrefix(key, urlPrefix)
		if !ok || sum != "" && sum != has {
			continue
		}
		if dir, ok, err := d.cache.Pin(user, key); ok && err == nil {
			img, err := open(dir, "sha256:"+has)
			return img, err == nil
		}
	}
	return nil, false
}

// urlPrefix is the prefix of the keys of downloads. The rest of the key is the checksum.
const urlPrefix = "url-"

// obtain makes sure that the cache has the content of a URL.
func (d *Dir) obtain(ctx context.Context, r URLRequest) (key string, err error) {
	if r.SHA256 != "" && d.cache.Has(urlPrefix+r.SHA256) {
		return urlPrefix + r.SHA256, nil
	}
	tmp, err := d.cache.Temp()
	if err != nil {
		return "", err
	}
	defer d.cache.Discard(tmp)
	var known seen
	if r.SHA256 == "" && d.cache.ReadNote(r.URL, &known) && !d.cache.Has(known.Key) {
		known = seen{}
	}
	file := filepath.Join(tmp, "download")
	res, err := d.download(ctx, r, file, known.Validators)
	if err != nil {
		return "", err
	}
	if res.NotModified {
		return known.Key, d.cache.WriteNote(r.URL, known)
	}
	key = urlPrefix + res.SHA256
	err = d.cache.Put(ctx, key, func(ctx context.Context, dir string) error {
		return d.fromFile(ctx, source{file: file, name: fetch.Redact(r.URL)}, filepath.Join(dir, imageFile), key)
	})
	if err != nil {
		return "", fmt.Errorf("root file system %s: %w", fetch.Redact(r.URL), err)
	}
	if res.Validators.Empty() {
		return key, nil
	}
	return key, d.cache.WriteNote(r.URL, seen{Key: key, Validators: res.Validators})
}

// download fetches the file of a URL, or of a path if the store allows paths.
func (d *Dir) download(ctx context.Context, r URLRequest, to string, known fetch.Validators) (*fetch.Result, error) {
	if !strings.HasPrefix(r.URL, "/") {
		return d.fetcher.Get(ctx, fetch.Request{URL: r.URL, Path: to, SHA256: r.SHA256, Known: known})
	}
	if !d.cfg.AllowPath {
		return nil, fmt.Errorf("%w: it is a path on the node, which the node's administrator does not allow; use an https URL", ErrRefused)
	}
	path, info, err := fetch.LocalPath(r.URL, d.private())
	if err != nil {
		return nil, err
	}
	// A file that has not been changed has the same content.
	now := fetch.Validators{ETag: fileTag(path, info)}
	if r.SHA256 == "" && now == known {
		return &fetch.Result{NotModified: true, Validators: known}, nil
	}
	res, err := d.fetcher.Copy(ctx, path, to, r.SHA256)
	if err != nil {
		return nil, err
	}
	res.Validators = now
	return res, nil
}

// fileTag returns a tag that changes with the file.
func fileTag(path string, info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return strings.Join([]string{
		path, strconv.FormatUint(st.Ino, 10), strconv.FormatInt(st.Size, 10),
		time.Unix(st.Mtim.Unix()).Format(time.RFC3339Nano), time.Unix(st.Ctim.Unix()).Format(time.RFC3339Nano),
	}, " ")
}

func (d *Dir) private() []string { return append([]string{d.cfg.Root}, d.cfg.Private...) }

// source is a download, with its name for messages.
type source struct{ file, name string }

// fromFile creates a block image at path from a download.
func (d *Dir) fromFile(ctx context.Context, from source, path, id string) error {
	dir, err := d.cache.Temp()
	if err != nil {
		return err
	}
	defer d.cache.Discard(dir)
	l := d.cfg.Limits
	a, err := image.UnpackArchive(ctx, image.ArchiveRequest{
		Unpacker: d.cfg.Unpacker, File: from.file, Name: from.name, Dir: dir, Form: image.ArchiveRoot,
		Limits: image.Limits{Bytes: l.Bytes, Entries: l.Entries, Time: l.Time, ReserveBytes: l.ReserveBytes},
	})
	if err != nil {
		return err
	}
	if len(a.Skipped) > 0 {
		d.log.Warn("device nodes left out of a root file system", "paths", a.Skipped)
	}
	if a.Tree != "" {
		progress.Of(ctx).Begin(buildProgress(from.name))
		return d.fromTree(ctx, a.Tree, path, id)
	}
	if err := validateFile(a.Image); err != nil {
		return err
	}
	if err := os.Chmod(a.Image, 0o444); err != nil {
		return fmt.Errorf("finishing the block image: %w", err)
	}
	if err := os.Rename(a.Image, path); err != nil {
		return fmt.Errorf("finishing the block image: %w", err)
	}
	return nil
}

// reasons maps the errors of other packages to those of this one.
var reasons = []struct{ theirs, ours error }{
	{fetch.ErrNoSpace, ErrNoSpace},
	{image.ErrNoSpace, ErrNoSpace},
	{fetch.ErrTooLarge, ErrTooLarge},
	{image.ErrTooLarge, ErrTooLarge},
	{fetch.ErrDigest, ErrDigest},
	{fetch.ErrRefused, ErrRefused},
	{image.ErrRefused, ErrRefused},
}

// reason adds this package's error to an error of the download or of the unpacker.
func (d *Dir) reason(err error) error {
	for _, r := range reasons {
		if errors.Is(err, r.theirs) && !errors.Is(err, r.ours) {
			return fmt.Errorf("%w: %w", r.ours, err)
		}
	}
	return err
}

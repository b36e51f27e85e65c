// Package imagesession serves requests about the images of a node: it lists, pulls, imports, exports
// and removes them in the image store. Package session carries them.
package imagesession

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image"
	"rik.dev/rik/internal/riklet/progress"
	"rik.dev/rik/internal/rpc/nodeimage"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Store is the node's image store. *image.Store implements it.
type Store interface {
	Images() []image.Info
	Canonical(name string) (string, error)
	Pull(ctx context.Context, req image.PullRequest) (*image.Image, error)
	Import(ctx context.Context, req image.ImportRequest) ([]image.ImportResult, error)
	Export(ctx context.Context, name string, to io.Writer) error
	Remove(ctx context.Context, name string) (freedBytes int64, err error)
}

// User is an instance that needs images.
type User struct {
	Name   string   // NAMESPACE/NAME
	Images []string // as in its template
}

// Service serves requests. It is safe for concurrent use.
type Service struct {
	store Store
	users func() []User
}

// New returns a service. users lists the instances of the node that have not ended.
func New(store Store, users func() []User) *Service { return &Service{store: store, users: users} }

// Error is an error with its kind in the protocol.
type Error struct {
	err  error
	kind nodev1.Problem
}

func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.err }

// Problem returns the kind of the error in the protocol.
func (e *Error) Problem() nodev1.Problem { return e.kind }

// Serve serves one request. It reads an archive from in, which it closes, and writes the answer as
// package nodeimage defines it to out. Errors that are in the answer are not returned.
func (s *Service) Serve(ctx context.Context, request *nodev1.ImagesSession, in io.ReadCloser, out io.Writer) error {
	var err error
	switch r := request.GetRequest().(type) {
	case *nodev1.ImagesSession_List:
		err = json.NewEncoder(out).Encode(nodeimage.List{Items: s.list()})
	case *nodev1.ImagesSession_Pull:
		err = s.pull(ctx, r.Pull, out)
	case *nodev1.ImagesSession_Import:
		err = s.receive(ctx, r.Import, in, out)
	case *nodev1.ImagesSession_Export:
		err = s.store.Export(ctx, r.Export.GetReference(), out)
	case *nodev1.ImagesSession_Remove:
		err = s.remove(ctx, r.Remove.GetReference(), out)
	default:
		err = fmt.Errorf("this riklet does not know the request: %w", errors.ErrUnsupported)
	}
	return classify(err)
}

func classify(err error) error {
	for sentinel, kind := range map[error]nodev1.Problem{
		image.ErrNotPresent: nodev1.Problem_PROBLEM_NOT_PRESENT, image.ErrInUse: nodev1.Problem_PROBLEM_IN_USE,
		image.ErrInvalidReference: nodev1.Problem_PROBLEM_INVALID, errors.ErrUnsupported: nodev1.Problem_PROBLEM_UNSUPPORTED,
	} {
		if errors.Is(err, sentinel) {
			return &Error{err, kind}
		}
	}
	return err
}

func (s *Service) list() []nodeimage.Image {
	infos := s.store.Images()
	used := s.uses()
	images := make([]nodeimage.Image, len(infos))
	for i, info := range infos {
		images[i] = imageOf(info)
		images[i].UsedBy = used[info.Reference]
	}
	return images
}

func imageOf(info image.Info) nodeimage.Image {
	return nodeimage.Image{
		Reference: image.Name(info.Reference), Digest: info.Digest, Bytes: info.Bytes, LastUsed: info.LastUsed, Imported: info.Imported,
	}
}

// uses returns the names of instances by the canonical references of the images that they need.
func (s *Service) uses() map[string][]string {
	used := map[string][]string{}
	for _, u := range s.users() {
		for _, name := range u.Images {
			ref, err := s.store.Canonical(name)
			if err == nil && !slices.Contains(used[ref], u.Name) {
				used[ref] = append(used[ref], u.Name)
			}
		}
	}
	for _, names := range used {
		slices.Sort(names)
	}
	return used
}

// remove refuses an image that an instance needs. The store also refuses one that is mounted.
func (s *Service) remove(ctx context.Context, name string, out io.Writer) error {
	ref, err := s.store.Canonical(name)
	if err != nil {
		return err
	}
	if names := s.uses()[ref]; len(names) > 0 {
		return fmt.Errorf("%w: %s is used by %s", image.ErrInUse, image.Name(ref), several(names))
	}
	freed, err := s.store.Remove(ctx, ref)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(nodeimage.Removed{Reference: image.Name(ref), FreedBytes: freed})
}

// several lists the first few names.
func several(names []string) string {
	const most = 5
	text := "instance "
	if len(names) > 1 {
		text = "instances "
	}
	if len(names) <= most {
		return text + strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s%s and %d more", text, strings.Join(names[:most], ", "), len(names)-most)
}

// pull contacts the registry also if the node has the image, because a tag may have changed.
func (s *Service) pull(ctx context.Context, r *nodev1.PullImage, out io.Writer) error {
	return s.events(ctx, out, func(ctx context.Context, send func(nodeimage.Event)) error {
		img, err := s.store.Pull(ctx, image.PullRequest{Reference: r.GetReference(), Policy: v1alpha1.PullAlways, Auth: r.GetAuth()})
		if err != nil {
			return err
		}
		for _, one := range s.list() {
			if one.Reference == image.Name(img.Reference) {
				send(nodeimage.Event{Image: &one})
			}
		}
		return nil
	})
}

// receive imports the archive that the user sends.
func (s *Service) receive(ctx context.Context, r *nodev1.ImportImages, in io.ReadCloser, out io.Writer) error {
	return s.events(ctx, out, func(ctx context.Context, send func(nodeimage.Event)) error {
		results, err := s.store.Import(ctx, image.ImportRequest{Stream: in, Name: r.GetName()})
		failed := 0
		for _, one := range results {
			if one.Err != nil {
				failed++
				send(nodeimage.Event{Failed: &nodeimage.Failure{Reference: image.Name(one.Image.Reference), Error: one.Err.Error()}})
				continue
			}
			img := imageOf(one.Image)
			send(nodeimage.Event{Image: &img})
		}
		if err == nil && failed > 0 {
			err = fmt.Errorf("%d of %d images were not imported", failed, len(results))
		}
		return err
	})
}

// interval is the interval of progress events. It is a variable for tests.
var interval = 500 * time.Millisecond

// events does work and writes its progress, its results and its end as lines. It returns an error if
// they cannot be written, which cancels the work.
func (s *Service) events(ctx context.Context, out io.Writer, do func(ctx context.Context, send func(nodeimage.Event)) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex // of the encoder
	encoder := json.NewEncoder(out)
	send := func(e nodeimage.Event) {
		mu.Lock()
		defer mu.Unlock()
		if err := encoder.Encode(e); err != nil {
			cancel(err)
		}
	}
	work := &progress.Work{}
	ended := make(chan struct{})
	var reporting sync.WaitGroup
	reporting.Go(func() { report(work, send, ended) })
	err := do(progress.With(ctx, work), send)
	close(ended)
	reporting.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := nodeimage.Done{}
	if err != nil {
		done.Error = err.Error()
	}
	send(nodeimage.Event{Done: &done})
	return context.Cause(ctx)
}

// report sends the progress whenever it has changed, until ended is closed.
func report(work *progress.Work, send func(nodeimage.Event), ended <-chan struct{}) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for last := (nodeimage.Progress{}); ; {
		p := work.Progress()
		now := nodeimage.Progress{Text: textOf(p), Bytes: p.Bytes, Total: p.Total}
		if now != last && p.What != "" {
			last = now
			send(nodeimage.Event{Progress: &now})
		}
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
	}
}

// textOf says what is done, without the bytes, which change all the time.
func textOf(p progress.Progress) string {
	text := p.What
	if p.Step != "" {
		text += ": " + p.Step
	}
	return text
}

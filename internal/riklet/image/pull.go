package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/go-digest"

	"rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/progress"
)

// PullRequest requests an image.
type PullRequest struct {
	// Reference is as in Container.Image.
	Reference string
	// Policy is the pull policy. "" means Always for the tag latest of a registry, and
	// IfNotPresent otherwise. With IfNotPresent, an image in a directory of the node is read
	// again if it was rebuilt. As on a Kubernetes node, every caller may use an image that is
	// present; with Always, the registry checks the caller's own credentials.
	Policy v1alpha1.PullPolicy
	// Auth is a dockerconfigjson; nil means the node's own credentials.
	Auth []byte
}

// flightKey distinguishes pulls that must not share a result, because other credentials may have
// other permissions.
type flightKey struct {
	reference string
	auth      [sha256.Size]byte
}

// flight is a running pull. Its result is written before done is closed.
type flight struct {
	done    chan struct{}
	cancel  context.CancelCauseFunc
	waiters int // under Store.mu
	work    *progress.Work
	record  *record
	err     error
}

// Pull returns the image, after it has fetched the layers that the node lacks. Calls for one
// reference share one transfer, which ends when the last caller has canceled. Calls for other
// references do not wait for it. A failed pull leaves nothing behind. Pull reports its progress
// to the progress.Work of ctx.
func (s *Store) Pull(ctx context.Context, req PullRequest) (*Image, error) {
	ref, err := parseReference(req.Reference)
	if err != nil {
		return nil, err
	}
	policy, err := ref.policyOf(req.Policy)
	if err != nil {
		return nil, err
	}
	if policy != v1alpha1.PullAlways {
		img, err := s.lookup(ref.String())
		if err == nil && policy == v1alpha1.PullIfNotPresent && ref.rebuilt(img.Digest) {
			err = fmt.Errorf("%w: %s was made anew", ErrNotPresent, ref)
		}
		if err == nil || policy == v1alpha1.PullNever {
			return img, err
		}
	}
	key := flightKey{ref.String(), sha256.Sum256(req.Auth)}
	f, err := s.join(ctx, key, ref, req.Auth)
	if err != nil {
		return nil, err
	}
	progress.Of(ctx).Follow(f.work)
	select {
	case <-f.done:
	case <-ctx.Done():
		s.leave(key, f)
		return nil, context.Cause(ctx)
	}
	if f.err != nil {
		return nil, fmt.Errorf("pulling %s: %w", ref, f.err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.imageOfLocked(f.record)
}

// join returns the running pull, or starts it.
func (s *Store) join(ctx context.Context, key flightKey, ref parsedReference, auth []byte) (*flight, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if f, ok := s.flights[key]; ok {
		f.waiters++
		return f, nil
	}
	// Do not use the first caller's context, because the pull must run as long as any caller
	// waits.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	f := &flight{done: make(chan struct{}), cancel: cancel, waiters: 1, work: &progress.Work{}}
	f.work.Begin(s.begun(ref))
	s.flights[key] = f
	s.pulls.Go(func() {
		defer cancel(nil)
		f.record, f.err = s.fetch(ctx, f, ref, auth)
		s.mu.Lock()
		s.landLocked(key, f)
		s.mu.Unlock()
		close(f.done)
	})
	return f, nil
}

// begun returns the progress of a new pull. Only pulls from a registry have a stall timeout,
// because reading files of this machine may take long.
func (s *Store) begun(ref parsedReference) progress.Progress {
	p := progress.Progress{What: "pulling " + ref.String()}
	if ref.transport == transportDocker {
		p.What = "pulling " + ref.target
		p.From, p.Stall = "the registry", s.cfg.Limits.WithDefaults().Stall
	}
	return p
}

// leave removes a caller that waits no longer.
func (s *Store) leave(key flightKey, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.waiters--; f.waiters == 0 {
		// Remove it from the table at once, so that new callers do not share its cancellation.
		s.landLocked(key, f)
		f.cancel(context.Canceled)
	}
}

func (s *Store) landLocked(key flightKey, f *flight) {
	if s.flights[key] == f {
		delete(s.flights, key)
	}
}

// fetch runs the child process and saves its result.
func (s *Store) fetch(ctx context.Context, f *flight, ref parsedReference, auth []byte) (_ *record, err error) {
	log := s.log.With("image", ref.String())
	start := time.Now()
	log.Info("pulling image")
	defer func() {
		if err != nil {
			log.Warn("image not pulled", "err", err, "duration", time.Since(start))
		}
	}()
	dir, err := os.MkdirTemp(s.path(tmpDir), "pull-")
	if err != nil {
		return nil, fmt.Errorf("making room for the pull: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			log.Warn("the remains of a pull stay until the next start", "path", dir, "err", err)
		}
	}()
	c := &child{store: s, log: log, progress: func(p wire.Progress) {
		now := s.begun(ref)
		now.Step, now.Bytes, now.Total = p.Step, p.Bytes, p.Total
		f.work.Begin(now)
	}}
	defer c.unpin()
	result, err := c.run(ctx, wire.Request{
		Transport:      ref.transport,
		Target:         ref.target,
		Auth:           auth,
		LayersDir:      s.path(layersDir),
		TempDir:        dir,
		Limits:         s.cfg.Limits.WithDefaults(),
		CertDir:        s.cfg.CertDir,
		RegistriesConf: s.cfg.RegistriesConf,
		AuthFile:       s.cfg.AuthFile,
		AllowNetworks:  s.cfg.AllowNetworks,
	})
	if err != nil {
		return nil, err
	}
	r := &record{
		Reference: ref.String(),
		Digest:    result.Digest,
		Config:    result.Config,

		Architecture: result.Architecture,

		Chain:    result.Chain,
		Bytes:    result.Bytes,
		LastUsed: s.now(),
	}
	if err := s.save(r); err != nil {
		return nil, err
	}
	log.Info("image pulled", "digest", r.Digest, "layers", len(r.Chain), "bytes", r.Bytes, "duration", time.Since(start))
	return r, nil
}

// pin protects layers from collection, including those that do not exist yet.
func (s *Store) pin(chain []digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chain {
		s.pins[c]++
	}
}

func (s *Store) unpin(chain []digest.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range chain {
		if s.pins[c]--; s.pins[c] == 0 {
			delete(s.pins, c)
		}
	}
}

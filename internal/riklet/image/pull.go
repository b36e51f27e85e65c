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

// pullKey distinguishes pulls that must not share a result, because other credentials may have
// other permissions.
type pullKey struct {
	reference string
	auth      [sha256.Size]byte
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
			err = fmt.Errorf("%w: %s was created again", ErrNotPresent, ref)
		}
		if err == nil || policy == v1alpha1.PullNever {
			return img, err
		}
	}
	r, err := s.pulls.Do(ctx, pullKey{ref.String(), sha256.Sum256(req.Auth)}, func(ctx context.Context) (*record, error) {
		progress.Of(ctx).Begin(s.begun(ref))
		r, err := s.fetch(ctx, ref, req.Auth)
		if err != nil {
			return nil, fmt.Errorf("pulling %s: %w", ref, err)
		}
		return r, nil
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.imageOfLocked(r)
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

// fetch runs the child process and saves its result.
func (s *Store) fetch(ctx context.Context, ref parsedReference, auth []byte) (_ *record, err error) {
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
		return nil, fmt.Errorf("creating a directory for the pull: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			log.Warn("temporary files of a pull were not removed; the next start removes them", "path", dir, "err", err)
		}
	}()
	c := &child{store: s, log: log, progress: func(p wire.Progress) {
		now := s.begun(ref)
		now.Step, now.Bytes, now.Total = p.Step, p.Bytes, p.Total
		progress.Of(ctx).Begin(now)
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

package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"strings"
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
		if err == nil {
			return img, nil
		}
		if loaded, err := s.awaitArchives(ctx); err != nil {
			return nil, err
		} else if loaded {
			return s.Pull(ctx, req)
		}
		if policy == v1alpha1.PullNever {
			return nil, err
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

// fetch pulls an image from where its reference says.
func (s *Store) fetch(ctx context.Context, ref parsedReference, auth []byte) (*record, error) {
	return s.unpack(ctx, unpacking{ref: ref, transport: ref.transport, target: ref.target, auth: auth, begun: s.begun(ref)})
}

// unpacking is one pull: from the registry of the reference, or from an archive that has the image
// under another name.
type unpacking struct {
	ref               parsedReference
	transport, target string
	auth              []byte
	imported          bool
	begun             progress.Progress
}

// unpack runs the child process and saves its result.
func (s *Store) unpack(ctx context.Context, u unpacking) (_ *record, err error) {
	log := s.log.With("image", u.ref.String())
	start := time.Now()
	log.Info("pulling image")
	defer func() {
		if err != nil {
			log.Warn("image not pulled", "err", err, "duration", time.Since(start))
		}
	}()
	dir, remove, err := s.tempDir("pull-", log)
	if err != nil {
		return nil, fmt.Errorf("creating a directory for the pull: %w", err)
	}
	defer remove()
	c := &child{store: s, log: log, progress: func(p wire.Progress) {
		now := u.begun
		now.Step, now.Bytes, now.Total = p.Step, p.Bytes, p.Total
		progress.Of(ctx).Begin(now)
	}}
	defer c.unpin()
	result, err := c.run(ctx, s.cfg.withRegistries(wire.Request{
		Transport:     u.transport,
		Target:        u.target,
		Auth:          u.auth,
		LayersDir:     s.path(layersDir),
		TempDir:       dir,
		Limits:        s.cfg.Limits.WithDefaults(),
		AllowNetworks: s.cfg.AllowNetworks,
	}))
	if err != nil {
		return nil, err
	}
	if _, want, digested := strings.Cut(u.ref.target, "@"); u.imported && digested && want != result.Digest.String() {
		return nil, fmt.Errorf("%w: the archive's image is %s", ErrDigest, result.Digest)
	}
	r := &record{
		Reference: u.ref.String(),
		Digest:    result.Digest,
		Config:    result.Config,

		Architecture: result.Architecture,

		Chain:    result.Chain,
		Bytes:    result.Bytes,
		LastUsed: s.now(),
		Imported: u.imported,
	}
	if err := s.save(r); err != nil {
		return nil, err
	}
	log.Info("image pulled", "digest", r.Digest, "layers", len(r.Chain), "bytes", r.Bytes, "duration", time.Since(start))
	return r, nil
}

// tempDir creates a directory for one call. The caller removes it with remove.
func (s *Store) tempDir(prefix string, log *slog.Logger) (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(s.path(tmpDir), prefix)
	if err != nil {
		return "", nil, err
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			log.Warn("temporary files were not removed; the next start removes them", "path", dir, "err", err)
		}
	}, nil
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

package fetch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"go.podman.io/image/v5/pkg/blobinfocache/none"
	"golang.org/x/sync/errgroup"

	"rik.dev/rik/internal/riklet/image/internal/layer"
	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// parallel is the number of layers transferred at the same time. More would gain little, because
// one core unpacks about as fast as a gigabit link delivers.
const parallel = 3

type puller struct {
	req    wire.Request
	out    *sender
	acked  <-chan struct{}
	src    *source
	budget *layer.Budget
	plan   *plan
	watch  *watch
	meter  meter
}

// staged is a layer of the pull. It is either in the store already, or below TempDir.
type staged struct {
	dir    string // contains wire.ContentDir
	final  string
	stored wire.Stored
	layer.Result
	reused bool
}

// pull makes the whole pull. It changes nothing outside TempDir until all layers are complete,
// so a failed pull leaves nothing behind.
func (p *puller) pull(ctx context.Context) (*wire.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.watch = &watch{limit: p.req.Limits.WithDefaults().Stall, cancel: cancel}
	result, err := p.pullAll(ctx)
	if err != nil && errors.Is(context.Cause(ctx), wire.ErrStalled) {
		return nil, explain(ctx, err)
	}
	return result, err
}

func (p *puller) pullAll(ctx context.Context) (*wire.Result, error) {
	var err error
	if p.budget, err = layer.NewBudget(p.req.Limits, p.req.TempDir); err != nil {
		return nil, err
	}
	defer p.meter.report(ctx, p.out)()
	src, sys, err := p.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = src.Close() }()
	p.src = src
	if p.plan, err = resolve(ctx, src, sys); err != nil {
		return nil, err
	}
	if err := p.out.send(wire.Event{Resolved: &wire.Resolved{Digest: p.plan.digest, Chain: p.plan.chain}}); err != nil {
		return nil, err
	}
	select {
	case <-p.acked:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	layers, err := p.fetchAll(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.settleWhiteouts(ctx, layers); err != nil {
		return nil, err
	}
	if err := publish(p.req.LayersDir, layers); err != nil {
		return nil, layer.Classify(fmt.Errorf("moving the layers into the store: %w", err))
	}
	result := &wire.Result{Digest: p.plan.digest, Config: p.plan.config.Config, Architecture: p.plan.config.Architecture, Chain: p.plan.chain}
	for _, l := range layers {
		result.Bytes += l.stored.Bytes
	}
	return result, nil
}

// fetchAll stages every layer that the store lacks. It first charges the layers that the store
// has to the budget, so that the limits apply to the image as a whole.
func (p *puller) fetchAll(ctx context.Context) ([]*staged, error) {
	layers := make([]*staged, len(p.plan.layers))
	for i := range layers {
		s, err := p.stage(i)
		if err != nil {
			return nil, p.layerError(i, err)
		}
		layers[i] = s
	}
	p.meter.begin("", p.toTransfer(layers))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(1)
	if p.src.HasThreadSafeGetBlob() {
		group.SetLimit(parallel)
	}
	for i, s := range layers {
		group.Go(func() error {
			if !s.reused {
				if err := p.fetch(ctx, i, s); err != nil {
					return p.layerError(i, err)
				}
			}
			return p.out.send(wire.Event{Layer: &wire.Layer{
				Index: i, Digest: p.plan.layers[i].Digest, Reused: s.reused,
				Bytes: s.stored.Bytes, Entries: s.stored.Entries, Skipped: s.Skipped,
			}})
		})
	}
	return layers, group.Wait()
}

// toTransfer returns the total size of the layers that the store lacks.
func (p *puller) toTransfer(layers []*staged) (total int64) {
	for i, s := range layers {
		size := p.plan.layers[i].Size
		switch {
		case s.reused:
		case size < 0:
			return 0
		default:
			total += size
		}
	}
	return total
}

func (p *puller) layerError(i int, err error) error {
	return fmt.Errorf("layer %d of %d (%s): %w", i+1, len(p.plan.layers), p.plan.layers[i].Digest, err)
}

// stage looks for layer i in the store.
func (p *puller) stage(i int) (*staged, error) {
	chain := p.plan.chain[i]
	name, err := wire.LayerDir(chain)
	if err != nil {
		return nil, err
	}
	s := &staged{final: filepath.Join(p.req.LayersDir, name)}
	data, err := os.ReadFile(filepath.Join(s.final, wire.StoredFile))
	if err == nil {
		if err := json.Unmarshal(data, &s.stored); err != nil {
			return nil, fmt.Errorf("record of a stored layer: %w", err)
		}
		s.dir, s.reused = s.final, true
		return s, p.budget.Charge(s.stored.Bytes, s.stored.Entries)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	s.dir = filepath.Join(p.req.TempDir, strconv.Itoa(i))
	s.stored = wire.Stored{Chain: chain, DiffID: p.plan.config.RootFS.DiffIDs[i]}
	return s, nil
}

// fetch transfers and unpacks layer i. It hashes the blob and the archive in it at the same
// time.
func (p *puller) fetch(ctx context.Context, i int, s *staged) error {
	content := filepath.Join(s.dir, wire.ContentDir)
	if err := os.MkdirAll(content, 0o755); err != nil {
		return layer.Classify(err)
	}
	// Set the mode independently of the riklet's umask, because it decides who may enter a
	// container's root.
	if err := os.Chmod(content, 0o755); err != nil {
		return err
	}
	info := p.plan.layers[i]
	body, _, err := p.src.GetBlob(ctx, info, none.NoCache)
	if err != nil {
		return fmt.Errorf("requesting the blob: %w", p.src.failure(err))
	}
	defer func() { _ = body.Close() }()
	blob := &blobReader{r: body, info: info, hash: info.Digest.Algorithm().Digester(), total: &p.meter.bytes, limit: p.req.Limits.WithDefaults().CompressedBytes}
	unpackErr := p.unpack(ctx, content, blob, s)
	if err := blob.verify(unpackErr); err != nil {
		return p.src.gate.explain(err) // the library reconnects if a transfer breaks off
	}
	s.stored.Bytes, s.stored.Entries = s.Bytes, s.Entries
	return nil
}

func (p *puller) unpack(ctx context.Context, dir string, blob io.Reader, s *staged) error {
	plain, closePlain, _, err := decompress(bufio.NewReaderSize(blob, readAhead))
	if err != nil {
		return err
	}
	defer closePlain()
	archive := s.stored.DiffID.Verifier()
	s.Result, err = layer.Apply(ctx, dir, io.TeeReader(plain, archive), p.budget)
	if err != nil {
		return err
	}
	if !archive.Verified() {
		return fmt.Errorf("%w: the unpacked archive is not %s", wire.ErrDigest, s.stored.DiffID)
	}
	return nil
}

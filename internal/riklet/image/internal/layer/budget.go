package layer

import (
	"context"
	"fmt"
	"io"
	"sync"
	"syscall"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Budget limits the total size of the layers of one image. It is safe for concurrent use.
type Budget struct {
	limits wire.Limits
	dir    string // on the file system of the store

	mu           sync.Mutex
	bytes        int64
	streamed     int64
	spooled      int64
	entries      int64
	sinceChecked int64
}

// checkInterval is the number of bytes written between two checks of the free space.
const checkInterval = 4 << 20

// NewBudget returns a budget for writing below dir. It sets the default of Limits.ReserveBytes.
func NewBudget(limits wire.Limits, dir string) (*Budget, error) {
	limits = limits.WithDefaults()
	if limits.ReserveBytes <= 0 {
		var st syscall.Statfs_t
		if err := syscall.Statfs(dir, &st); err != nil {
			return nil, fmt.Errorf("reading the free space of %s: %w", dir, err)
		}
		limits.ReserveBytes = min(int64(st.Blocks)*st.Bsize/50, 512<<20)
	}
	// The first write checks the free space.
	return &Budget{limits: limits, dir: dir, sinceChecked: checkInterval}, nil
}

// Charge charges a layer that was unpacked before, because it is part of the image's size.
func (b *Budget) Charge(bytes, entries int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes += bytes
	b.entries += entries
	return b.checkLocked()
}

func (b *Budget) checkLocked() error {
	if b.bytes > b.limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes unpacked", wire.ErrTooLarge, b.limits.Bytes)
	}
	if b.entries > b.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", wire.ErrTooLarge, b.limits.Entries)
	}
	return nil
}

func (b *Budget) takeEntry() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries++
	return b.checkLocked()
}

// Take charges n bytes that do not belong to an entry, before they are written.
func (b *Budget) Take(n int64) error { return b.takeBytes(n) }

// takeBytes charges a file before it is written.
func (b *Budget) takeBytes(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n < 0 || n > b.limits.Bytes-b.bytes {
		return fmt.Errorf("%w: more than %d bytes unpacked", wire.ErrTooLarge, b.limits.Bytes)
	}
	b.bytes += n
	return b.checkSpaceLocked(n)
}

// takeStream charges n bytes of an archive as they are read. In addition to the files, an
// archive has at most a few blocks of metadata for each entry. More than that is a padding bomb.
func (b *Budget) takeStream(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.streamed += int64(n)
	if b.streamed-b.limits.Bytes > b.limits.Entries*framing {
		return fmt.Errorf("%w: more than %d bytes unpacked", wire.ErrTooLarge, b.limits.Bytes)
	}
	return nil
}

// framing is a generous average of the bytes of metadata per entry: two blocks.
const framing = 1024

// checkSpaceLocked checks the free space once for every checkInterval bytes that are about to be
// written.
func (b *Budget) checkSpaceLocked(n int64) error {
	if b.sinceChecked += n; b.sinceChecked < checkInterval {
		return nil
	}
	b.sinceChecked = 0
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.dir, &st); err != nil {
		return fmt.Errorf("reading the free space of %s: %w", b.dir, err)
	}
	if free := int64(st.Bavail) * st.Bsize; free-n < b.limits.ReserveBytes {
		return fmt.Errorf("%w: %d bytes are free, %d must stay free, and %d are needed",
			wire.ErrNoSpace, free, b.limits.ReserveBytes, n)
	}
	return nil
}

// spacious reports whether the file system has space above the reserve now.
func (b *Budget) spacious() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sinceChecked = checkInterval
	return b.checkSpaceLocked(0) == nil
}

// Spool charges n bytes that are written only for the duration of the pull, such as an archive
// that is unpacked in order to read it.
func (b *Budget) Spool(n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.spooled += n; n < 0 || b.spooled > b.limits.CompressedBytes {
		return fmt.Errorf("%w: an archive of more than %d bytes", wire.ErrTooLarge, b.limits.CompressedBytes)
	}
	return b.checkSpaceLocked(n)
}

// Reader returns a reader of r that fails when ctx ends, or when more was read than an image may
// unpack to.
func (b *Budget) Reader(ctx context.Context, r io.Reader) io.Reader {
	return &meteredReader{ctx: ctx, r: r, account: b.takeStream}
}

// SpooledReader is like Reader, for data that is written unchanged: it charges with Spool.
func (b *Budget) SpooledReader(ctx context.Context, r io.Reader) io.Reader {
	return &meteredReader{ctx: ctx, r: r, account: func(n int) error { return b.Spool(int64(n)) }}
}

// SpoolingWriter returns a writer to w that charges with Spool.
func (b *Budget) SpoolingWriter(w io.Writer) io.Writer { return spoolingWriter{b, w} }

type spoolingWriter struct {
	budget *Budget
	to     io.Writer
}

// Write implements io.Writer.
func (w spoolingWriter) Write(p []byte) (int, error) {
	if err := w.budget.Spool(int64(len(p))); err != nil {
		return 0, err
	}
	return w.to.Write(p)
}

// WithContext makes reads from r fail once ctx has ended.
func WithContext(ctx context.Context, r io.Reader) io.Reader {
	return &meteredReader{ctx: ctx, r: r, account: func(int) error { return nil }}
}

// meteredReader fails when the context ends or the budget is exceeded.
type meteredReader struct {
	ctx     context.Context
	r       io.Reader
	account func(n int) error
}

func (m *meteredReader) Read(p []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, context.Cause(m.ctx)
	}
	n, err := m.r.Read(p)
	if n > 0 {
		if over := m.account(n); over != nil {
			return n, over
		}
	}
	return n, err
}

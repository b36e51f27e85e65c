// Package fetch is the code of the image store's child process. It resolves one reference,
// transfers the layers that the store lacks and unpacks them, or it unpacks one archive. It
// reads untrusted input from the network and runs for minutes. Therefore it runs in a separate
// process, which can be killed and whose memory is freed when it ends. Package wire defines the
// protocol between the two.
package fetch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// errStoreGone ends a pull whose store has died, because its result has no user.
var errStoreGone = errors.New("the riklet has ended")

// Run serves one Request from stdin. It returns after it has written the Result or Failure. The
// error is that of the Failure.
func Run(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := json.NewDecoder(stdin)
	var req wire.Request
	if err := in.Decode(&req); err != nil {
		return fmt.Errorf("reading the request: %w", err)
	}
	ctx, stop := context.WithTimeoutCause(ctx, req.Limits.WithDefaults().Time, wire.ErrTimeout)
	defer stop()

	acked := make(chan struct{})
	// This goroutine ends with stdin, which belongs to the process and outlives the pull. Run
	// does not wait for it.
	go func() {
		var ack wire.Ack
		if err := in.Decode(&ack); err != nil || !ack.Pinned {
			cancel(errStoreGone)
			return
		}
		close(acked)
		_ = in.Decode(&ack) // no more messages follow: this waits for the end
		cancel(errStoreGone)
	}()

	out := &sender{enc: json.NewEncoder(stdout)}
	result, err := serve(ctx, req, out, acked)
	if err != nil {
		err = explain(ctx, err)
		return errors.Join(err, out.send(wire.Event{Failure: wire.FailureOf(err)}))
	}
	return out.send(wire.Event{Result: result})
}

func serve(ctx context.Context, req wire.Request, out *sender, acked <-chan struct{}) (*wire.Result, error) {
	m := &meter{}
	var do func() (*wire.Result, error)
	switch {
	case req.Archive != nil:
		do = func() (*wire.Result, error) {
			unpacked, err := unpackArchive(ctx, *req.Archive, req.Limits, m)
			return &wire.Result{Archive: unpacked}, err
		}
	case req.Check:
		do = func() (*wire.Result, error) { return &wire.Result{}, checkRegistries(req) }
	case req.Open != nil:
		do = func() (*wire.Result, error) {
			opened, err := openFile(ctx, req, m)
			return &wire.Result{Opened: opened}, err
		}
	case req.Export != nil:
		do = func() (*wire.Result, error) {
			out := os.NewFile(wire.StreamFile, "export")
			n, err := export(ctx, req, out, m)
			return &wire.Result{Exported: n}, errors.Join(err, out.Close())
		}
	default:
		return (&puller{req: req, out: out, acked: acked}).pull(ctx)
	}
	stop := m.report(ctx, out)
	result, err := do()
	stop()
	if err != nil {
		return nil, err
	}
	return result, nil
}

// explain replaces the error by the cause of the context's end. The original error, perhaps a
// refusal of an incomplete archive, is only a consequence.
func explain(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %s", cause, err.Error())
	}
	return err
}

// sender writes events from several goroutines without mixing them.
type sender struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func (s *sender) send(e wire.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enc.Encode(e); err != nil {
		return fmt.Errorf("reporting to the image store: %w", err)
	}
	return nil
}

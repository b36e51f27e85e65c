package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"rik.dev/rik/internal/riklet/guest/wire"
)

// client implements Guest on top of an Opener.
type client struct{ open Opener }

// New returns the node's side of the guest whose streams open opens.
func New(open Opener) Guest { return &client{open: open} }

// call opens a stream, sends a request and returns the answer. It also returns the stream, for
// operations that continue. send writes what follows the request's line.
func (c *client) call(ctx context.Context, r Request, send func(io.Writer) error) (net.Conn, Answer, error) {
	conn, err := c.open(ctx)
	if err != nil {
		return nil, Answer{}, err
	}
	conn = wire.ReadAhead(conn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	answer, err := exchange(conn, r, send)
	// If the context has ended, the stream is closed or will be.
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, Answer{}, fmt.Errorf("asking the guest to %s: %w", r.Op, err)
	}
	return conn, answer, nil
}

func exchange(conn net.Conn, r Request, send func(io.Writer) error) (Answer, error) {
	sent := wire.WriteLine(conn, r)
	if sent == nil && send != nil {
		sent = send(conn)
	}
	// An init that refuses a request may answer before it has read all of it.
	var answer Answer
	if err := wire.ReadLine(conn, &answer); err != nil {
		return Answer{}, errors.Join(sent, err)
	}
	if answer.Failure != nil {
		return Answer{}, answer.Failure.Err()
	}
	return answer, sent
}

// ask makes a call that ends with its answer.
func (c *client) ask(ctx context.Context, r Request, send func(io.Writer) error) (Answer, error) {
	conn, answer, err := c.call(ctx, r, send)
	if err != nil {
		return Answer{}, err
	}
	return answer, conn.Close()
}

func (c *client) Configure(ctx context.Context, config Config) error {
	volumes := config.Volumes
	config.Volumes = make([]Volume, len(volumes))
	for i, v := range volumes {
		config.Volumes[i] = withoutFiles(v)
	}
	_, err := c.ask(ctx, Request{Op: OpConfigure, Config: &config}, func(w io.Writer) error { return sendFiles(w, volumes) })
	return err
}

func (c *client) Files(ctx context.Context, v Volume) error {
	bare := withoutFiles(v)
	_, err := c.ask(ctx, Request{Op: OpFiles, Volume: &bare}, func(w io.Writer) error { return sendFiles(w, []Volume{v}) })
	return err
}

// withoutFiles returns the volume without its files. They are sent as frames, because they may
// be longer than a line.
func withoutFiles(v Volume) Volume {
	v.Files = nil
	return v
}

func sendFiles(w io.Writer, volumes []Volume) error {
	for _, v := range volumes {
		for _, f := range v.Files {
			if err := sendFile(w, v.Name, f); err != nil {
				return err
			}
		}
	}
	return wire.WriteFrame(w, wire.End, nil)
}

func sendFile(w io.Writer, volume string, f File) error {
	if err := wire.WriteFrameJSON(w, wire.File, FileHeader{Volume: volume, Path: f.Path, Mode: f.Mode}); err != nil {
		return err
	}
	return wire.WriteChunks(w, wire.Data, f.Data)
}

func (c *client) Usage(ctx context.Context) (Usage, error) {
	answer, err := c.ask(ctx, Request{Op: OpUsage}, nil)
	if err != nil {
		return Usage{}, err
	}
	if answer.Usage == nil {
		return Usage{}, fmt.Errorf("%w: no usage in the answer", ErrProtocol)
	}
	return *answer.Usage, nil
}

func (c *client) Health(ctx context.Context) error {
	_, err := c.ask(ctx, Request{Op: OpHealth}, nil)
	return err
}

func (c *client) Thaw(ctx context.Context, i Identity) error {
	_, err := c.ask(ctx, Request{Op: OpThaw, Identity: &i}, nil)
	return err
}

func (c *client) Keep(ctx context.Context) error {
	_, err := c.ask(ctx, Request{Op: OpKeep}, nil)
	return err
}

func (c *client) Shutdown(ctx context.Context) error {
	_, err := c.ask(ctx, Request{Op: OpShutdown}, nil)
	return err
}

package legacy

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

// raw passes frames unchanged, so that the tests send the bytes of an old peer, encoded by hand
// from the published field numbers.
type raw struct{}

func (raw) Name() string                  { return "proto" }
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// text encodes a length-delimited field.
func text(number byte, s string) string { return string([]byte{number<<3 | 2, byte(len(s))}) + s }

// number encodes a varint field.
func number(field, value byte) string { return string([]byte{field << 3, value}) }

func schedule(id string) string { return text(1, "workload") + text(2, "{}") + text(4, id) }
func destroy(id string) string {
	return text(1, "workload") + text(2, "{}") + number(3, 1) + text(4, id)
}

// created and destroyed are frames that a worker receives. updated is a frame that a controller
// receives from the scheduler itself.
func created(id string) string   { return text(1, id) + text(2, "{}") }
func destroyed(id string) string { return text(1, id) + text(2, "{}") + number(3, 1) }
func updated(id string, status byte) string {
	inner := text(3, id)
	if status > 0 {
		inner = number(1, status) + inner
	}
	return text(1, inner) + text(3, id)
}

type peers struct {
	t    *testing.T
	conn *grpc.ClientConn
}

// serve runs both services on one loopback port.
func serve(t *testing.T) *peers {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listening: %v", err)
	}
	s := New(slog.New(slog.DiscardHandler))
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	s.RegisterController(server)
	s.RegisterWorker(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatalf("dialing: %v", err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return &peers{t: t, conn: conn}
}

func (p *peers) call(method, frame string) error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	in, out := []byte(frame), []byte(nil)
	return p.conn.Invoke(ctx, method, &in, &out)
}

func (p *peers) schedule(frame string) error {
	return p.call("/controller.Controller/ScheduleInstance", frame)
}

// reader is a stream on which the server sends.
type reader struct {
	t      *testing.T
	stream grpc.ClientStream
	cancel context.CancelFunc
}

func (p *peers) open(method, frame string) *reader {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	p.t.Cleanup(cancel)
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		p.t.Fatalf("%s: %v", method, err)
	}
	in := []byte(frame)
	if err := stream.SendMsg(&in); err != nil {
		p.t.Fatalf("%s: sending: %v", method, err)
	}
	if err := stream.CloseSend(); err != nil {
		p.t.Fatalf("%s: closing: %v", method, err)
	}
	return &reader{t: p.t, stream: stream, cancel: cancel}
}

// accepted opens a stream and waits until the server has accepted it. It tries again if the
// server refuses because an earlier stream has not ended yet.
func (p *peers) accepted(method, frame string) *reader {
	p.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		r := p.open(method, frame)
		// A refused stream has no headers, and Recv returns its error.
		if md, err := r.stream.Header(); err == nil && md != nil {
			return r
		}
		_, err := r.receive()
		if status.Code(err) != codes.AlreadyExists || time.Now().After(deadline) {
			p.t.Fatalf("%s: %v", method, err)
		}
	}
}

func (p *peers) worker(host string) *reader {
	p.t.Helper()
	return p.accepted("/worker.Worker/Register", text(1, host))
}

func (p *peers) subscribe() *reader {
	p.t.Helper()
	return p.accepted("/controller.Controller/GetStatusUpdates", "")
}

func (r *reader) receive() (string, error) {
	var out []byte
	err := r.stream.RecvMsg(&out)
	return string(out), err
}

func (r *reader) next() string {
	r.t.Helper()
	frame, err := r.receive()
	if err != nil {
		r.t.Fatalf("receiving: %v", err)
	}
	return frame
}

func (r *reader) want(frames ...string) {
	r.t.Helper()
	for _, want := range frames {
		if got := r.next(); canonical(r.t, got) != canonical(r.t, want) {
			r.t.Fatalf("got frame %q, want %q", got, want)
		}
	}
}

// canonical sorts the fields of a frame, whose order may differ.
func canonical(t *testing.T, frame string) string {
	t.Helper()
	var fields []string
	for b := []byte(frame); len(b) > 0; {
		_, _, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatalf("frame %q: %v", frame, protowire.ParseError(n))
		}
		fields = append(fields, string(b[:n]))
		b = b[n:]
	}
	slices.Sort(fields)
	return strings.Join(fields, "")
}

// say sends statuses as a worker does, and waits for the response.
func (p *peers) say(frames ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/worker.Worker/SendStatusUpdates")
	if err != nil {
		p.t.Fatalf("SendStatusUpdates: %v", err)
	}
	for _, frame := range frames {
		in := []byte(frame)
		if err := stream.SendMsg(&in); err != nil {
			p.t.Fatalf("sending a status: %v", err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		p.t.Fatalf("closing: %v", err)
	}
	var out []byte
	if err := stream.RecvMsg(&out); err != nil || len(out) != 0 {
		p.t.Fatalf("answer to statuses = %q, %v, want an empty message", out, err)
	}
}

const (
	pending    = 1
	running    = 2
	terminated = 4
	creating   = 5
	destroying = 6
)

func workerUpdate(host string, status byte) string {
	inner := ""
	if status > 0 {
		inner = number(1, status)
	}
	return text(2, inner) + text(3, host)
}

func TestLifecycleOfAnInstance(t *testing.T) {
	t.Parallel()
	p := serve(t)
	updates := p.subscribe()
	if err := p.schedule(schedule("i1")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	updates.want(updated("i1", pending))
	w := p.worker("w1")
	updates.want(workerUpdate("w1", running), updated("i1", creating))
	w.want(created("i1"))
	// The published worker omits host_address. The scheduler sets it.
	said := text(1, number(1, running)+text(2, `{"cpu":1}`)+text(3, "i1")) + text(3, "w1")
	p.say(said)
	updates.want(said + text(4, "127.0.0.1"))
	own := said + text(4, "10.1.2.3")
	p.say(own)
	updates.want(own)
	if err := p.schedule(destroy("i1")); err != nil {
		t.Fatalf("ScheduleInstance(DESTROY) = %v", err)
	}
	w.want(destroyed("i1"))
	updates.want(updated("i1", destroying))
	gone := text(1, number(1, terminated)+text(3, "i1")) + text(3, "w1") + text(4, "10.1.2.3")
	p.say(gone)
	updates.want(gone)
	if err := p.schedule(destroy("i1")); status.Code(err) != codes.NotFound {
		t.Errorf("destroying it again = %v, want NotFound", err)
	}
	metrics := text(2, number(1, running)+text(2, "{}")) + text(3, "w1") + text(4, "10.1.2.3")
	p.say(metrics)
	updates.want(metrics)
}

func TestRegisterRefusals(t *testing.T) {
	t.Parallel()
	p := serve(t)
	if _, err := p.open("/worker.Worker/Register", "").receive(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("Register without a hostname = %v, want FailedPrecondition", err)
	}
	first := p.worker("w1")
	if _, err := p.open("/worker.Worker/Register", text(1, "w1")).receive(); status.Code(err) != codes.AlreadyExists {
		t.Errorf("second Register = %v, want AlreadyExists", err)
	}
	first.cancel()
	second := p.worker("w1")
	if err := p.schedule(schedule("i1")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	second.want(created("i1"))
}

func TestOneSubscriber(t *testing.T) {
	t.Parallel()
	p := serve(t)
	first := p.subscribe()
	if _, err := p.open("/controller.Controller/GetStatusUpdates", "").receive(); status.Code(err) != codes.AlreadyExists {
		t.Errorf("second subscription = %v, want AlreadyExists", err)
	}
	first.cancel()
	second := p.subscribe()
	if err := p.schedule(schedule("i1")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	second.want(updated("i1", pending))
}

// TestSpreadFault03: instances that are created one at a time go to all workers.
func TestSpreadFault03(t *testing.T) {
	t.Parallel()
	p := serve(t)
	var workers []*reader
	for i := range 3 {
		workers = append(workers, p.worker(fmt.Sprint("w", i)))
	}
	for i := range 6 {
		if err := p.schedule(schedule(fmt.Sprint("i", i))); err != nil {
			t.Fatalf("ScheduleInstance = %v", err)
		}
	}
	for i, w := range workers {
		w.want(created(fmt.Sprint("i", i)), created(fmt.Sprint("i", i+3)))
	}
}

// TestDestroyFault04: a DESTROY goes to the owner of the instance, even if the owner was
// disconnected.
func TestDestroyFault04(t *testing.T) {
	t.Parallel()
	p := serve(t)
	owner := p.worker("owner")
	if err := p.schedule(schedule("i1")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	owner.want(created("i1"))
	other := p.worker("another")
	owner.cancel()
	if err := p.schedule(destroy("i1")); err != nil {
		t.Fatalf("DESTROY = %v", err)
	}
	p.worker("owner").want(destroyed("i1"))
	// The next order of the other worker is for its own instance: it did not receive the DESTROY.
	if err := p.schedule(schedule("i2")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	other.want(created("i2"))
}

// TestUnknownInstanceFault02: a status of an unknown instance, an empty status, and a DESTROY
// of an unknown instance do not change the service.
func TestUnknownInstanceFault02(t *testing.T) {
	t.Parallel()
	p := serve(t)
	updates := p.subscribe()
	p.say(text(1, number(1, running)+text(3, "ghost"))+text(3, "w1"), "", text(1, ""))
	if err := p.schedule(destroy("ghost")); status.Code(err) != codes.NotFound {
		t.Errorf("DESTROY of an unknown instance = %v, want NotFound", err)
	}
	if err := p.schedule(text(1, "workload") + number(3, 1)); status.Code(err) != codes.InvalidArgument {
		t.Errorf("DESTROY without an instance = %v, want InvalidArgument", err)
	}
	if err := p.schedule(schedule("i1")); err != nil {
		t.Fatalf("ScheduleInstance = %v", err)
	}
	if err := p.schedule(schedule("i1")); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same instance again = %v, want AlreadyExists", err)
	}
	updates.want(updated("i1", pending))
	if err := p.schedule(destroy("i1")); err != nil {
		t.Fatalf("DESTROY of a pending instance = %v", err)
	}
	updates.want(updated("i1", terminated))
}

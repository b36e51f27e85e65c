package runner

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/runner/engine"
	"rik.dev/rik/internal/riklet/state"
)

// ready reports whether a running container is ready.
func (c *container) ready(s state.Container) bool {
	if c.killWhy != "" || c.sent != 0 {
		return false
	}
	return (c.spec.StartupProbe == nil || s.Begun) && (c.spec.ReadinessProbe == nil || s.Ready)
}

// note changes the recorded state of the current run.
func (c *container) note(change func(*state.Container)) {
	s := c.m.rec.Containers[c.spec.Name]
	before := s
	if change(&s); s.Begun != before.Begun || s.Ready != before.Ready || s.Reason != before.Reason || s.Message != before.Message {
		c.m.setContainer(c.spec.Name, s)
	}
}

// beginProbes starts the probes of a run that has just begun or was recovered.
func (c *container) beginProbes() {
	m := c.m
	ctx, cancel := context.WithCancel(m.startCtx)
	c.cancel, c.address = cancel, m.address()
	if c.spec.StartupProbe != nil && !m.rec.Containers[c.spec.Name].Begun {
		c.probe(ctx, *c.spec.StartupProbe, c.startupResult(ctx))
		return
	}
	c.probeOn(ctx)
}

// probeOn starts the probes that wait for the startup probe.
func (c *container) probeOn(ctx context.Context) {
	if p := c.spec.LivenessProbe; p != nil {
		c.probe(ctx, *p, func(why error) bool {
			if why != nil {
				c.endUnhealthy("liveness probe failed: " + why.Error())
			}
			return why == nil
		})
	}
	if p := c.spec.ReadinessProbe; p != nil {
		c.probe(ctx, *p, func(why error) bool {
			c.note(func(s *state.Container) { *s = withReadiness(*s, why) })
			return true
		})
	}
}

// withReadiness applies the result of a readiness probe: nil, or why the container is not ready. Of
// consecutive failures of the same kind, the first message stays. Otherwise an answer that differs
// each time would change the status each time.
func withReadiness(s state.Container, why error) state.Container {
	s.Ready = why == nil
	if why == nil {
		s.Reason, s.Message = "", ""
		return s
	}
	const failed = "readiness probe failed: "
	if rest, ok := strings.CutPrefix(s.Message, failed+kindOf(why)); s.Reason != reasonNotReady || !ok || rest != "" && !strings.HasPrefix(rest, ": ") {
		s.Reason, s.Message = reasonNotReady, failed+why.Error()
	}
	return s
}

// answerError is a probe answer that means failure. Errors of the same kind are equal, whatever
// text the answer contained.
type answerError struct{ kind, text string }

func (e *answerError) Error() string {
	if e.text == "" {
		return e.kind
	}
	return e.kind + ": " + e.text
}

func kindOf(err error) string {
	if answer, ok := errors.AsType[*answerError](err); ok {
		return answer.kind
	}
	return err.Error()
}

func (c *container) startupResult(ctx context.Context) func(error) bool {
	return func(why error) bool {
		if why != nil {
			c.endUnhealthy("startup probe failed: " + why.Error())
			return false
		}
		c.note(func(s *state.Container) { s.Begun = true })
		c.probeOn(ctx)
		return false
	}
}

func (c *container) endProbes() {
	if c.cancel != nil {
		c.cancel()
	}
	c.cancel = nil
}

func (m *machine) endProbes() {
	for _, c := range m.containers {
		c.endProbes()
	}
}

// endUnhealthy ends an unhealthy run: with the stop signal first, and with SIGKILL after the grace
// period.
func (c *container) endUnhealthy(why string) {
	if c.killWhy != "" {
		return
	}
	c.m.log.Info("container is unhealthy", "container", c.spec.Name, "why", why)
	c.killWhy, c.killAt = why, c.m.now().Add(c.m.grace())
	c.signal(engine.SignalNumber(c.m.rec.Containers[c.spec.Name].StopSignal))
}

// killsDue kills unhealthy containers whose grace period is over.
func (m *machine) killsDue() time.Time {
	var next time.Time
	for _, c := range m.containers {
		if c.killAt.IsZero() || c.state() != rikv1alpha1.ContainerRunning {
			continue
		}
		if m.now().Before(c.killAt) {
			next = earliest(next, c.killAt)
			continue
		}
		c.signal(9)
	}
	return next
}

// counter counts consecutive probe results and turns them into the results that count.
type counter struct{ good, bad int32 }

// add returns the counter after one more result, and whether a result counts now.
func (n counter) add(ok bool, p rikv1alpha1.Probe) (counter, bool) {
	if ok {
		n = counter{good: n.good + 1}
		return n, n.good >= max(p.SuccessThreshold, 1)
	}
	n = counter{bad: n.bad + 1}
	threshold := p.FailureThreshold
	if threshold <= 0 {
		threshold = 3
	}
	return n, n.bad >= threshold
}

// probe repeats a probe until ctx ends or handle returns false. The machine's goroutine calls
// handle with nil or the failure.
func (c *container) probe(ctx context.Context, p rikv1alpha1.Probe, handle func(why error) bool) {
	m, clock := c.m, c.m.d.cfg.Clock
	wait := func(d time.Duration) bool {
		if d <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-clock.After(d):
			return true
		}
	}
	m.tasks.Go(func() {
		period := seconds(p.PeriodSeconds, 10)
		var n counter
		for ok := wait(time.Duration(p.InitialDelaySeconds) * time.Second); ok; ok = wait(period) {
			why := c.ask(ctx, p)
			if ctx.Err() != nil {
				return
			}
			if failed, ok := errors.AsType[*nodeError](why); ok {
				// The result does not depend on the container, so it does not count. kubelet does
				// the same.
				m.log.Warn("making a probe failed", "container", c.spec.Name, "err", failed.err)
				continue
			}
			var due bool
			if n, due = n.add(why == nil, p); !due {
				continue
			}
			more := make(chan bool, 1)
			m.post(func() { more <- ctx.Err() == nil && handle(why) })
			select {
			case <-ctx.Done():
				return
			case again := <-more:
				if !again {
					return
				}
			}
		}
	})
}

func seconds(n, otherwise int32) time.Duration {
	if n <= 0 {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

// maxAnswer bounds how much of a probe's output is read. maxAnswerShown bounds how much of it is
// reported. Both are in bytes.
const (
	maxAnswer      = 1 << 10
	maxAnswerShown = 200
)

// shown formats an answer as one short line.
func shown(answer string) string {
	line := strings.Join(strings.FieldsFunc(answer, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) }), " ")
	return strings.ToValidUTF8(excerpt.Of(line, maxAnswerShown), "")
}

// ask makes one probe. It returns nil if the probe succeeded.
func (c *container) ask(ctx context.Context, p rikv1alpha1.Probe) error {
	timeout := seconds(p.TimeoutSeconds, 1)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer in %s", timeout))
	defer cancel()
	var err error
	switch {
	case p.Exec != nil:
		err = c.askExec(ctx, *p.Exec)
	case p.HTTP != nil:
		err = c.askHTTP(ctx, *p.HTTP)
	case p.TCP != nil:
		var conn net.Conn
		if conn, err = c.reach(ctx, p.TCP.Port); err == nil {
			err = conn.Close()
		}
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	if _, ours := errors.AsType[*nodeError](err); ours {
		return err
	}
	return brief(plain(err))
}

// brief bounds the text of an error. A library may quote the whole answer in its error, and the
// answering process must not determine the size of a status.
func brief(err error) error {
	if err == nil || len(err.Error()) <= maxAnswer {
		return err
	}
	return &answerError{kind: shown(err.Error())}
}

// plain removes from an error what differs each time: the local port of the connection.
func plain(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return &net.OpError{Op: op.Op, Net: op.Net, Addr: op.Addr, Err: op.Err}
	}
	return err
}

// nodeError means that a probe was not made, because of a problem on the node and not in the
// container.
type nodeError struct{ err error }

func (e *nodeError) Error() string { return "making the probe failed: " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

func (c *container) askExec(ctx context.Context, p rikv1alpha1.ExecProbe) error {
	var out limited
	code, err := c.m.exec(ctx, c.spec.Name, instance.ExecOptions{Command: p.Command, Stdout: &out, Stderr: &out})
	if err != nil {
		return &nodeError{err}
	}
	if code != 0 {
		return &answerError{fmt.Sprintf("the command exited with %d", code), shown(out.String())}
	}
	return nil
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), maxAnswer-min(l.Len(), maxAnswer))])
	return len(p), nil
}

// maxRedirects is how many redirects a probe follows, as in kubelet.
const maxRedirects = 10

// followRedirect follows redirects to the same host on any port, as kubelet does. A redirect to
// another host counts as the answer, because it leads out of the instance.
func followRedirect(next *http.Request, via []*http.Request) error {
	if next.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

func portOf(address string) (int32, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return int32(port), err
}

// reach connects to a port as clients do: from the node to the instance's address. The only
// clients of an instance without an address are its own processes, so it dials inside the
// instance.
func (c *container) reach(ctx context.Context, port int32) (net.Conn, error) {
	if c.address == "" {
		return c.m.engine.Dial(ctx, c.m.engineRunning(), port)
	}
	return c.m.d.cfg.Dial(ctx, "tcp", net.JoinHostPort(c.address, strconv.Itoa(int(port))))
}

func (c *container) askHTTP(ctx context.Context, p rikv1alpha1.HTTPProbe) error {
	scheme := strings.ToLower(p.Scheme)
	if scheme == "" {
		scheme = "http"
	}
	host := cmp.Or(c.address, engine.Loopback)
	address := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(p.Port))) + "/" + strings.TrimPrefix(p.Path, "/")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", "rik-probe")
	for name, value := range p.Headers {
		if strings.EqualFold(name, "Host") {
			request.Host = value
		}
		request.Header.Set(name, value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			port, err := portOf(address)
			if err != nil {
				return nil, err
			}
			return c.reach(ctx, port)
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // documented: a probe asks for life, not identity
	}
	client := http.Client{Transport: transport, CheckRedirect: followRedirect}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 200 && response.StatusCode < 400 {
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return &answerError{fmt.Sprintf("HTTP %d", response.StatusCode), shown(string(body))}
}

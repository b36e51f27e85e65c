package instance_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/registry/rest"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodev1"
)

// sessions is a server of one instance's log and exec.
type sessions struct {
	url  string
	node *registrytest.Node
	name string
	log  *journal
}

// journal stores the log messages.
type journal struct {
	mu            sync.Mutex
	infos, errors []string
}

func (j *journal) Init(logr.RuntimeInfo)             {}
func (j *journal) Enabled(int) bool                  { return true }
func (j *journal) WithValues(...any) logr.LogSink    { return j }
func (j *journal) WithName(string) logr.LogSink      { return j }
func (j *journal) Info(_ int, m string, _ ...any)    { j.note(&j.infos, m) }
func (j *journal) Error(_ error, m string, _ ...any) { j.note(&j.errors, m) }

func (j *journal) note(to *[]string, message string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*to = append(*to, message)
}

func (j *journal) has(in *[]string, message string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Contains(*in, message)
}

func serve(t *testing.T, bound string, script func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd) *sessions {
	t.Helper()
	n := &registrytest.Node{Script: script, Opened: make(chan *nodev1.OpenSession, 8)}
	f := setup(t, registry.Config{Sessions: n, Authorizer: registrytest.Allow("ann", "create")})
	i := f.create(t, of("web"))
	if bound != "" {
		i, err := f.direct.Get(t.Context(), "team", i.Name)
		if err != nil {
			t.Fatal(err)
		}
		i.Spec.NodeName = bound
		if _, err := f.direct.Update(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	for path, c := range map[string]rest.Connecter{"log": f.Instances.Log, "exec": f.Instances.Exec, "portforward": f.Instances.Ports, "suspend": f.Instances.Suspend, "resume": f.Instances.Resume} {
		mux.HandleFunc("/{name}/"+path, func(w http.ResponseWriter, r *http.Request) { connect(w, r, c) })
	}
	server := httptest.NewUnstartedServer(mux)
	log := &journal{}
	server.Config.BaseContext = func(net.Listener) context.Context { return logr.NewContext(context.Background(), logr.New(log)) }
	server.Start()
	t.Cleanup(server.Close)
	return &sessions{url: server.URL, node: n, name: i.Name, log: log}
}

// connect does the same as the API server's handler for connections.
func connect(w http.ResponseWriter, r *http.Request, c rest.Connecter) {
	who := r.Header.Get("X-User")
	if who == "" {
		who = "ann"
	}
	ctx := registrytest.As(r.Context(), "team", who)
	options, _, _ := c.NewConnectOptions()
	answer := responder{w, r}
	if options != nil {
		if err := legacyscheme.ParameterCodec.DecodeParameters(r.URL.Query(), rikv1alpha1.SchemeGroupVersion, options); err != nil {
			answer.Error(apierrors.NewBadRequest(err.Error()))
			return
		}
	}
	h, err := c.Connect(ctx, r.PathValue("name"), options, answer)
	if err != nil {
		answer.Error(err)
		return
	}
	h.ServeHTTP(w, r.WithContext(ctx))
}

type responder struct {
	w http.ResponseWriter
	r *http.Request
}

func (a responder) Object(int, runtime.Object) {}

func (a responder) Error(err error) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, rikv1alpha1.SchemeGroupVersion, a.w, a.r)
}

func get(t *testing.T, url string) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

func TestLog(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		s.Out("one\n")
		s.Out("two\n")
		s.Out("three\n")
		return &nodev1.SessionEnd{}
	})
	code, body, err := get(t, s.url+"/"+s.name+"/log?container=side&previous=true&tailLines=5&sinceSeconds=60&timestamps=true")
	if code != http.StatusOK || body != "one\ntwo\nthree\n" || err != nil {
		t.Errorf("log = %d %q, %v", code, body, err)
	}
	open := <-s.node.Opened
	log := open.GetLog()
	if open.GetContainer() != "side" || !log.GetPrevious() || log.GetFollow() || log.GetTailLines() != 5 || log.GetSinceSeconds() != 60 || !log.GetTimestamps() {
		t.Errorf("opened %v", open)
	}
}

func TestLogRefuses(t *testing.T) {
	t.Parallel()
	fails := func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd {
		return &nodev1.SessionEnd{Error: "the container has no previous run"}
	}
	for name, tc := range map[string]struct {
		bound, query string
		code         int
		want         string
	}{
		"not bound":         {"", "", 409, "it has no node yet"},
		"not connected":     {"n2", "", 503, `node \"n2\" of instance`},
		"not opened":        {"mute", "", 504, `node \"mute\" of instance`},
		"unknown container": {"n1", "?container=x", 400, "it has: main, side"},
		"bad number":        {"n1", "?tailLines=-1", 422, "tailLines"},
		"bad seconds":       {"n1", "?sinceSeconds=0", 422, "sinceSeconds"},
		"not a number":      {"n1", "?tailLines=many", 400, "many"},
		"both":              {"n1", "?follow=true&previous=true", 422, "follow"},
		"the node refuses":  {"n1", "?previous=true", 400, "no previous run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tc.bound, fails)
			code, body, err := get(t, s.url+"/"+s.name+"/log"+tc.query)
			if code != tc.code || !strings.Contains(body, tc.want) || err != nil {
				t.Errorf("log = %d %s, %v, want %d with %q", code, body, err, tc.code, tc.want)
			}
		})
	}
	s := serve(t, "n1", fails)
	if code, body, _ := get(t, s.url+"/other/log"); code != 404 {
		t.Errorf("log of nothing = %d %s, want 404", code, body)
	}
}

// TestLogCutShort loses the node during a log. The client must not treat the partial log as
// complete.
func TestLogCutShort(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		s.Out("half")
		return &nodev1.SessionEnd{Error: "disk failed"}
	})
	if _, body, err := get(t, s.url+"/"+s.name+"/log"); err == nil {
		t.Errorf("log = %q without an error", body)
	}
}

// TestLogFollowEndsWithTheClient disconnects the client of a session that waits for more lines.
func TestLogFollowEndsWithTheClient(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		s.Out("first\n")
		<-s.Gone()
		close(gone)
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/"+s.name+"/log?follow=true", nil)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line := make([]byte, 6)
	if _, err := io.ReadFull(answer.Body, line); err != nil || string(line) != "first\n" {
		t.Fatalf("first line = %q, %v", line, err)
	}
	cancel()
	await(t, gone, "the session to end")
}

// TestLogOfMuch: all of a long log arrives.
func TestLogOfMuch(t *testing.T) {
	t.Parallel()
	const pieces, size = 64, 16 << 10
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		for range pieces {
			s.Out(strings.Repeat("x", size))
		}
		return &nodev1.SessionEnd{}
	})
	if _, body, err := get(t, s.url+"/"+s.name+"/log"); len(body) != pieces*size || err != nil {
		t.Errorf("log has %d bytes, %v, want %d", len(body), err, pieces*size)
	}
}

// leaveEarly sends its last message while the client has not read most of the output. Messages of
// the client no longer reach it.
func leaveEarly(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
	s.Leave()
	for range 8 {
		s.Out(strings.Repeat("x", 16<<10))
	}
	return &nodev1.SessionEnd{}
}

func TestLogOfNodeThatIsDone(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", leaveEarly)
	if _, body, err := get(t, s.url+"/"+s.name+"/log"); len(body) != 128<<10 || err != nil {
		t.Errorf("log has %d bytes, %v, want all %d", len(body), err, 128<<10)
	}
}

func TestExecOfNodeThatIsDone(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		s := serve(t, "n1", leaveEarly)
		var out bytes.Buffer
		err := s.execute(t, protocol, url.Values{"command": {"x"}, "stdout": {"true"}}, remotecommand.StreamOptions{Stdout: &out})
		if err != nil || out.Len() != 128<<10 {
			t.Errorf("exec = %v with %d bytes, want all %d", err, out.Len(), 128<<10)
		}
	})
}

func await(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
	}
}

// protocols are the two protocols of kubectl.
var protocols = map[string]func(*clientrest.Config, *url.URL) (remotecommand.Executor, error){
	"SPDY": func(c *clientrest.Config, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(c, http.MethodPost, u)
	},
	"WebSocket": func(c *clientrest.Config, u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(c, http.MethodGet, u.String())
	},
}

// execute runs a command like kubectl.
func (s *sessions) execute(t *testing.T, protocol string, query url.Values, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(s.url + "/" + s.name + "/exec?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	executor, err := protocols[protocol](&clientrest.Config{Host: s.url}, u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return executor.StreamWithContext(ctx, o)
}

func forEachProtocol(t *testing.T, test func(*testing.T, string)) {
	for name := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, name)
		})
	}
}

// TestExecEcho sends more input than one side of a session holds, and ends it. It receives the input on
// both outputs, with an exit code.
func TestExecEcho(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
			total := 0
			for {
				d := s.Read()
				if d == nil {
					return nil
				}
				total += len(d.GetData())
				if d.GetEndOfInput() {
					break
				}
			}
			s.Out(fmt.Sprintf("got %d\n", total))
			s.Print(nodev1.NewOutput(nodev1.Channel_CHANNEL_STDERR, []byte("oops\n")))
			return &nodev1.SessionEnd{ExitCode: 42}
		})
		var out, errOut bytes.Buffer
		input := strings.Repeat("i", 3*nodev1.Window)
		err := s.execute(t, protocol, url.Values{"command": {"wc", "-c"}, "stdin": {"true"}, "stdout": {"true"}, "stderr": {"true"}},
			remotecommand.StreamOptions{Stdin: strings.NewReader(input), Stdout: &out, Stderr: &errOut})
		var exit exec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 42 {
			t.Errorf("exec = %v, want exit code 42", err)
		}
		if want := fmt.Sprintf("got %d\n", len(input)); out.String() != want || errOut.String() != "oops\n" {
			t.Errorf("output = %q, %q, want %q", out.String(), errOut.String(), want)
		}
		open := <-s.node.Opened
		if diff := cmp.Diff([]string{"wc", "-c"}, open.GetExec().GetCommand()); diff != "" || open.GetContainer() != "main" || !open.GetExec().GetStdin() {
			t.Errorf("opened %v", open)
		}
	})
}

// TestExecEndsQuietly: when the server ends the connection, the library's read error is not
// logged as an error.
func TestExecEndsQuietly(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
		s.Out("done")
		return &nodev1.SessionEnd{}
	})
	config, err := websocket.NewConfig(strings.Replace(s.url, "http", "ws", 1)+"/"+s.name+"/exec?command=x&stdout=true", s.url)
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = []string{"v5.channel.k8s.io"}
	client, err := config.DialContext(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := io.Copy(io.Discard, client); err != nil {
		t.Errorf("reading to the end: %v", err)
	}
	const message = "Error on socket receive"
	deadline := time.Now().Add(time.Minute)
	for !s.log.has(&s.log.infos, message) && !s.log.has(&s.log.errors, message) {
		if time.Now().After(deadline) {
			t.Fatal("the end of the connection was not logged at all: does the library still do that?")
		}
		<-time.After(10 * time.Millisecond)
	}
	if s.log.has(&s.log.errors, message) {
		t.Error("the end of a session is logged as an error")
	}
}

func TestExecOutputOnly(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
			s.Out(strings.Repeat("o", 100<<10))
			return &nodev1.SessionEnd{}
		})
		var out bytes.Buffer
		err := s.execute(t, protocol, url.Values{"command": {"x"}, "stdout": {"true"}}, remotecommand.StreamOptions{Stdout: &out})
		if err != nil || out.Len() != 100<<10 {
			t.Errorf("exec = %v with %d bytes", err, out.Len())
		}
	})
}

// sizes is a terminal that has one size.
type sizes struct{ once sync.Once }

func (s *sizes) Next() (size *remotecommand.TerminalSize) {
	s.once.Do(func() { size = &remotecommand.TerminalSize{Width: 132, Height: 43} })
	return size
}

func TestExecTerminal(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		s := serve(t, "n1", func(s *registrytest.FarEnd, open *nodev1.OpenSession) *nodev1.SessionEnd {
			for {
				d := s.Read()
				if d == nil {
					return nil
				}
				if size := d.GetSize(); size != nil {
					s.Out(fmt.Sprintf("%v %dx%d", open.GetExec().GetTty(), size.GetWidth(), size.GetHeight()))
					return &nodev1.SessionEnd{}
				}
			}
		})
		var out bytes.Buffer
		err := s.execute(t, protocol, url.Values{"command": {"sh"}, "stdin": {"true"}, "stdout": {"true"}, "tty": {"true"}},
			remotecommand.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true, TerminalSizeQueue: &sizes{}})
		if err != nil || out.String() != "true 132x43" {
			t.Errorf("exec = %v with %q", err, out.String())
		}
	})
}

func TestExecNodeRefuses(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		s := serve(t, "n1", func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd {
			return &nodev1.SessionEnd{Error: "no such program: nope"}
		})
		var out bytes.Buffer
		err := s.execute(t, protocol, url.Values{"command": {"nope"}, "stdout": {"true"}}, remotecommand.StreamOptions{Stdout: &out})
		if err == nil || !strings.Contains(err.Error(), "no such program: nope") {
			t.Errorf("exec = %v, want the node's reason", err)
		}
	})
}

// cutableForwarder forwards connections to a server until it is cut, like a client that disconnects.
type cutableForwarder struct {
	listener net.Listener
	mu       sync.Mutex
	ends     []net.Conn
}

func lay(t *testing.T, to string) *cutableForwarder {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutableForwarder{listener: l}
	t.Cleanup(c.cut)
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				return
			}
			c.mu.Lock()
			c.ends = append(c.ends, near, far)
			c.mu.Unlock()
			go func() { _, _ = io.Copy(far, near) }()
			go func() { _, _ = io.Copy(near, far) }()
		}
	}()
	return c
}

func (c *cutableForwarder) cut() {
	_ = c.listener.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, end := range c.ends {
		_ = end.Close()
	}
}

// TestExecEndsWithTheClient disconnects the client while the command has no output.
func TestExecEndsWithTheClient(t *testing.T) {
	t.Parallel()
	forEachProtocol(t, func(t *testing.T, protocol string) {
		gone := make(chan struct{})
		s := serve(t, "n1", func(s *registrytest.FarEnd, _ *nodev1.OpenSession) *nodev1.SessionEnd {
			s.Out("up")
			for s.Read() != nil {
				// Input may end first, which a command may ignore.
			}
			close(gone)
			return nil
		})
		server, _ := url.Parse(s.url)
		c := lay(t, server.Host)
		u, _ := url.Parse("http://" + c.listener.Addr().String() + "/" + s.name + "/exec?command=sleep&stdout=true")
		executor, err := protocols[protocol](&clientrest.Config{Host: u.Host}, u)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: writerFunc(func(p []byte) (int, error) {
			c.cut()
			return len(p), nil
		})})
		await(t, gone, "the session to end")
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestExecRefuses(t *testing.T) {
	t.Parallel()
	s := serve(t, "n1", func(*registrytest.FarEnd, *nodev1.OpenSession) *nodev1.SessionEnd { return &nodev1.SessionEnd{} })
	for name, tc := range map[string]struct {
		query, user string
		code        int
		want        string
	}{
		"no command":        {"stdout=true", "ann", 422, "command"},
		"no stream":         {"command=x", "ann", 422, "stdout"},
		"unknown container": {"command=x&stdout=true&container=y", "ann", 400, "it has: main, side"},
		"not allowed":       {"command=x&stdout=true", "bob", 403, `verb \"create\"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/"+s.name+"/exec?"+tc.query, nil)
			req.Header.Set("X-User", tc.user)
			answer, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body, _ := io.ReadAll(answer.Body)
			if answer.StatusCode != tc.code || !strings.Contains(string(body), tc.want) {
				t.Errorf("exec = %d %s, want %d with %q", answer.StatusCode, body, tc.code, tc.want)
			}
		})
	}
}

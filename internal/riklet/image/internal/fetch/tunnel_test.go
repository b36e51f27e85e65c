package fetch

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// through returns a client that connects through a tunnel.
func through(tb testing.TB, connect func(context.Context, string) (net.Conn, error)) (*http.Client, *tunnel) {
	tb.Helper()
	tun, err := openTunnel(connect)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = tun.Close() })
	tr := &http.Transport{Proxy: http.ProxyURL(tun.url)}
	tb.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}, tun
}

func get(tb testing.TB, c *http.Client, url string) (string, error) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, url, nil)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

func TestTunnelCarriesBothWays(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, long)
	}))
	t.Cleanup(s.Close)
	var asked []string
	c, _ := through(t, func(ctx context.Context, target string) (net.Conn, error) {
		asked = append(asked, target)
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	})
	for _, host := range []string{"name.example", "10.0.0.1:8080", "[fd00::1]:81"} {
		c.CloseIdleConnections()
		if body, err := get(t, c, "http://"+host+"/"); err != nil || body != long {
			t.Errorf("%s: %d bytes, %v; want %d", host, len(body), err, len(long))
		}
	}
	if got := strings.Join(asked, " "); got != "name.example:80 10.0.0.1:8080 [fd00::1]:81" {
		t.Errorf("connections to %s", got)
	}
	if _, err := get(t, c, "http://name.example/cut"); err == nil {
		t.Error("an answer that was cut off is none")
	}
}

func TestTunnelIsClosedToOthers(t *testing.T) {
	t.Parallel()
	c, tun := through(t, func(context.Context, string) (net.Conn, error) {
		t.Error("a connection was made")
		return nil, errors.New("must not be")
	})
	for name, user := range map[string]*url.Userinfo{"no password": nil, "another password": url.UserPassword("rik", "guess")} {
		proxy := *tun.url
		proxy.User = user
		c.Transport.(*http.Transport).Proxy = http.ProxyURL(&proxy) //nolint:forcetypeassert // made above
		if _, err := get(t, c, "http://name.example/"); err == nil {
			t.Errorf("%s: let in", name)
		}
	}
}

// Close ends all connections of a tunnel, including idle ones.
func TestTunnelCloses(t *testing.T) {
	t.Parallel()
	held := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(held)
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	c, tun := through(t, func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	})
	done := make(chan error, 1)
	go func() {
		_, err := get(t, c, "http://name.example/")
		done <- err
	}()
	<-held
	if err := tun.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err == nil {
		t.Error("the request ended well")
	}
}

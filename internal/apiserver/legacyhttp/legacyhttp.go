// Package legacyhttp is the plain HTTP listener for clients that were published
// before rik had TLS and users. Whoever connects is the user rik:legacy with
// all permissions, so it exists only on loopback, only when asked for, and
// serves only the paths that those clients know.
package legacyhttp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// User is who every request on the plain listener comes from.
const User = "rik:legacy"

const (
	// readHeaderTimeout is against connections that are opened and forgotten.
	readHeaderTimeout = 10 * time.Second
	// stopTimeout is how long requests may take to end once stopping.
	stopTimeout = 5 * time.Second
)

// key marks a request's context; only this package can make one.
type key struct{}

// Authenticate implements authenticator.RequestFunc: it knows the requests that
// came in through [Serve] and has no opinion on any other. The mark is in the
// context, where no client can put it.
func Authenticate(r *http.Request) (*authenticator.Response, bool, error) {
	if r.Context().Value(key{}) == nil {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: User, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}, true, nil
}

// Serve serves handler on the listener until ctx ends. Only paths that allowed
// accepts are passed on.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, allowed func(path string) bool, logger *slog.Logger) error {
	server := &http.Server{
		Handler:           guard(handler, allowed),
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	release := context.AfterFunc(ctx, func() {
		// The parent is over; this context only bounds the farewell.
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		err := server.Shutdown(stopping)
		if err != nil {
			err = errors.Join(err, server.Close())
		}
		stopped <- err
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		if !release() {
			err = errors.Join(err, <-stopped)
		}
		return fmt.Errorf("serving plain http: %w", err)
	}
	return <-stopped
}

// guard refuses what a web page in a browser on this machine could send: it
// cannot read our certificate, but it can post to any loopback port.
func guard(next http.Handler, allowed func(path string) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Origin") != "" || !loopbackHost(r.Host):
			http.Error(w, "the insecure legacy port does not serve web pages", http.StatusForbidden)
		case !allowed(r.URL.Path):
			http.NotFound(w, r)
		default:
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, true)))
		}
	})
}

// loopbackHost is against names that an attacker's DNS points to 127.0.0.1.
func loopbackHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if host == "localhost" || host == "" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// Package legacyhttp is the plain HTTP listener for clients that were published before rik had
// TLS and users. Every client is the user rik:legacy with all permissions. The listener
// therefore exists only on loopback and only if it is configured, and serves only the paths of
// those clients.
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

// User is the user of every request on the plain listener.
const User = "rik:legacy"

const (
	// readHeaderTimeout ends connections that were opened and not used.
	readHeaderTimeout = 10 * time.Second
	// stopTimeout is how long requests may take to end when the listener stops.
	stopTimeout = 5 * time.Second
)

// key marks a request's context. Only this package can set it.
type key struct{}

// Authenticate implements authenticator.RequestFunc. It recognizes the requests that came in
// through [Serve] and does not decide about others. The mark is in the context, where no client can
// set it.
func Authenticate(r *http.Request) (*authenticator.Response, bool, error) {
	if r.Context().Value(key{}) == nil {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{
		Name: User, Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated},
	}}, true, nil
}

// Serve serves handler on the listener until ctx ends. It passes on only paths that allowed
// accepts.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, allowed func(path string) bool, logger *slog.Logger) error {
	server := &http.Server{
		Handler:           guard(handler, allowed),
		ReadHeaderTimeout: readHeaderTimeout,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
	stopped := make(chan error, 1)
	release := context.AfterFunc(ctx, func() {
		// ctx has ended. This context only bounds the shutdown.
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

// guard refuses requests that a web page in a browser on this machine could send. A page cannot
// use our certificate, but it can post to any loopback port.
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

// loopbackHost protects against names that an attacker's DNS resolves to 127.0.0.1.
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

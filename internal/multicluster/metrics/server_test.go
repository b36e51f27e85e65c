package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"rik.dev/rik/internal/testkit/output"
)

// TestMetricsAreForThisMachineAlone tests that only a loopback address is accepted.
func TestMetricsAreForThisMachineAlone(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		address, want string
	}{
		"none":          {"", ""},
		"loopback":      {"127.0.0.1:0", ""},
		"loopback IPv6": {"[::1]:9090", ""},
		"everywhere":    {":9090", "other machines can reach it"},
		"all addresses": {"0.0.0.0:9090", "other machines can reach it"},
		"another's":     {"192.0.2.1:9090", "other machines can reach it"},
		"a name":        {"example.com:9090", "other machines can reach it"},
		"no port":       {"127.0.0.1", "is not an address and a port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Server{Address: tc.address}.Validate()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Validate(%q) = %v, want %q", tc.address, err, tc.want)
			}
		})
	}
}

var serving = regexp.MustCompile(`msg="serving metrics".* url=(\S+)`)

// TestServerServesWhileTheProgramRuns tests that the metrics are served as long as the program runs,
// and that the program's error is returned.
func TestServerServesWhileTheProgramRuns(t *testing.T) {
	t.Parallel()
	var log output.Buffer
	var url string
	err := Server{Address: "127.0.0.1:0"}.RunWith(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), func(ctx context.Context) error {
		match := serving.FindStringSubmatch(log.String())
		if match == nil {
			return fmt.Errorf("the log does not contain the URL: %q", log.String())
		}
		url = match[1]
		if body, err := scrape(ctx, url); err != nil || !strings.Contains(body, "go_goroutines") {
			return fmt.Errorf("the metrics are %.100q, %w", body, err)
		}
		return errors.ErrUnsupported
	})
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("RunWith() = %v, want the program's error", err)
	}
	if _, err := scrape(t.Context(), url); err == nil {
		t.Error("the metrics are served after the end of the program")
	}
}

// TestPortInUse tests that the program does not start if the port cannot be opened.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	other, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	err = Server{Address: other.Addr().String()}.RunWith(t.Context(), slog.New(slog.DiscardHandler), func(context.Context) error {
		t.Error("the program started")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "--"+Flag) {
		t.Errorf("RunWith() = %v, want an error that names the flag", err)
	}
}

func scrape(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return string(body), err
}

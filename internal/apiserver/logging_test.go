package apiserver

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestFatalErrorsOfLibrariesAreLogged runs itself in a process that a library ends.
func TestFatalErrorsOfLibrariesAreLogged(t *testing.T) {
	t.Parallel()
	switch os.Getenv("RIK_TEST_FATAL") {
	case "logged":
		redirectKlog(slog.New(slog.NewTextHandler(os.Stderr, nil)))
		fallthrough
	case "early":
		klog.Infof("not shown")
		klog.Fatalf("hook %q failed: %v", "x", "no datastore")
	}
	for mode, want := range map[string]string{
		"logged": `level=ERROR msg="a fatal error in a Kubernetes library ends the process" component=kubernetes err="hook \"x\" failed: no datastore"`,
		"early":  `a fatal error in a Kubernetes library ends the process: hook "x" failed: no datastore`,
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()

			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFatalErrorsOfLibrariesAreLogged$")
			command.Env = append(os.Environ(), "RIK_TEST_FATAL="+mode)
			var said bytes.Buffer
			command.Stderr = &said
			err := command.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("the process ended with %v, want the code 1", err)
			}
			if !strings.Contains(said.String(), want) || strings.Contains(said.String(), "not shown") {
				t.Errorf("it said %q, want %q", said.String(), want)
			}
		})
	}
}

// TestUnauthenticatedRequestsDoNotFillTheLog: requests with an invalid token are not logged.
func TestUnauthenticatedRequestsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(quieter{slog.NewTextHandler(&out, nil)})
	//prose:foreign
	log.Error("Unable to authenticate the request", "err", "invalid bearer token")
	log.Error("something else")
	if text := out.String(); strings.Contains(text, "authenticate") || !strings.Contains(text, "something else") {
		t.Errorf("the log has %q", text)
	}
}

func TestFormattedMessagesKeepTheirLevel(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]slog.Level{
		"E0102 03:04:05.000000       1 file.go:1] broken\n": slog.LevelWarn,
		"W0102 03:04:05.000000       1 file.go:1] odd\n":    slog.LevelDebug,
		"I0102 03:04:05.000000       1 file.go:1] fine\n":   slog.LevelDebug,
	} {
		severity, text := parseFormatted([]byte(line))
		if got := lower(severity); got != want || strings.Contains(text, "file.go") {
			t.Errorf("%q has level %s and text %q, want %s", line, got, text, want)
		}
	}
}

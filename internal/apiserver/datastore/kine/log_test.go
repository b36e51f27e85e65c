package kine

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"rik.dev/rik/internal/testkit/output"
)

// TestValuesAreNotLogged: a request that the database refuses is logged with its key, and never
// with its value.
func TestValuesAreNotLogged(t *testing.T) { //nolint:paralleltest // logrus has one logger
	var log output.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	dir := t.TempDir()
	s, err := Start(t.Context(), Config{Source: "sqlite://", Dir: dir, SocketDir: dir, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const key, value = "/registry/configmaps/team/settings", "correct horse battery staple"
	// kine does not support such a transaction.
	for range 20 {
		if _, err := client.Txn(t.Context()).Then(clientv3.OpPut(key, value), clientv3.OpPut(key+"2", value)).Commit(); err == nil {
			t.Fatal("the transaction is taken: the test needs another that is refused")
		}
	}
	if _, err := client.Put(t.Context(), key, value); err == nil {
		t.Log("a plain put is taken")
	}
	text := log.String()
	if strings.Contains(text, "horse") {
		t.Errorf("the value is in the log:\n%s", text)
	}
	if !strings.Contains(text, key) {
		t.Errorf("the key is not in the log:\n%s", text)
	}
	if n := strings.Count(text, "etcdserverpb.KV/Txn"); n != 1 {
		t.Errorf("20 failures of one kind are %d lines:\n%s", n, text)
	}
}

func TestForwardedMessages(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		message string
		level   logrus.Level
		want    string
	}{
		"of a request":    {"error in txn success:<request_put:<key:\"k\" value:\"secret\" > >: full", logrus.ErrorLevel, ""},
		"of a put":        {"error in put key:\"k\" value:\"secret\": full", logrus.ErrorLevel, ""},
		"of itself":       {"Compact failed: no space", logrus.ErrorLevel, "level=ERROR"},
		"a warning":       {"slow", logrus.WarnLevel, "level=WARN"},
		"a very long one": {strings.Repeat("x", 1<<20), logrus.ErrorLevel, "..."},
	} {
		var out bytes.Buffer
		f := forward{slog.New(slog.NewTextHandler(&out, nil))}
		if err := f.Fire(&logrus.Entry{Message: tc.message, Level: tc.level}); err != nil {
			t.Fatal(err)
		}
		got := out.String()
		if strings.Contains(got, "secret") || (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) || len(got) > 2*maxMessage {
			t.Errorf("%s: logged %.200q, want %q in it", name, got, tc.want)
		}
	}
}

func TestFailuresAreLoggedNowAndThen(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	f := newFailures(slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.now = func() time.Time { return now }
	for range 100 {
		f.report("/Txn", "/a", errors.New("down"))
		now = now.Add(time.Second)
	}
	if n := strings.Count(out.String(), "level=ERROR"); n != 10 {
		t.Errorf("100 s of one failure a second are %d lines, want 10:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "sameSince=9") {
		t.Errorf("nothing says how many were left out:\n%s", out.String())
	}
}

package etcd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
)

// TestExpectedMessagesAreNotErrors: the first start of a store logs no error. Possible faults are still
// errors.
func TestExpectedMessagesAreNotErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		message string
		err     error
		want    string
	}{
		"no term yet":   {storageVersionMessage, errors.New("cannot detect storage schema version: missing term information"), "DEBUG"},
		"another cause": {storageVersionMessage, errors.New("version \"3.9\" is not supported"), "ERROR"},
		"no cause":      {storageVersionMessage, nil, "ERROR"},
		"another":       {"lost the disk", errors.New("missing term information"), "ERROR"},
		"users":         {authMessage, nil, "DEBUG"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
			zap.New(newCore(logger, &atomic.Bool{})).Error(tc.message, zap.String("cluster-version", "3.6.0"), zap.Error(tc.err))
			if !strings.Contains(out.String(), "level="+tc.want) {
				t.Errorf("logged %q, want level %s", out.String(), tc.want)
			}
		})
	}
}

package wire

import (
	"errors"
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
)

func TestFailuresKeepTheirReason(t *testing.T) {
	t.Parallel()
	for _, c := range codes {
		err := FailureOf(fmt.Errorf("layer 1: %w: x", c.sentinel)).Err()
		if !errors.Is(err, c.sentinel) || err.Error() != "layer 1: "+c.sentinel.Error()+": x" {
			t.Errorf("%s arrives as %q", c.code, err)
		}
	}
	if err := FailureOf(errors.New("plain")).Err(); err.Error() != "plain" || errors.Unwrap(err) != nil {
		t.Errorf("an error without a reason arrives as %#v", err)
	}
	if err := FailureOf(fmt.Errorf("%w: %w", ErrRefused, ErrTimeout)).Err(); !errors.Is(err, ErrTimeout) || errors.Is(err, ErrRefused) {
		t.Errorf("of two reasons, %v arrives", err)
	}
}

// The name of a directory is made of a digest from an untrusted source.
func TestLayerDirIsOnePathComponent(t *testing.T) {
	t.Parallel()
	const hex = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	if got, err := LayerDir("sha256:" + hex); err != nil || got != "sha256-"+hex {
		t.Errorf("LayerDir = %q, %v", got, err)
	}
	for _, bad := range []digest.Digest{"", "sha256:", "sha256:../../etc", "../x:" + hex, "sha256:" + hex + "/..", "md5:0"} {
		if got, err := LayerDir(bad); err == nil {
			t.Errorf("LayerDir(%q) = %q, want an error", bad, got)
		}
	}
}

package rikctl

import (
	"testing"

	"rik.dev/rik/internal/rikctl/notranslate"
)

func TestRenamed(t *testing.T) {
	t.Parallel()
	const text = "kubectl get; see https://kubernetes.io/docs/reference/kubectl/#x"
	if got, want := renamed(text), "rikctl get; see https://kubernetes.io/docs/reference/kubectl/#x"; got != want {
		t.Errorf("renamed() = %q, want %q", got, want)
	}
}

// TestTranslationsAreNotRead fails if another package requests a translation before package
// notranslate is initialized.
func TestTranslationsAreNotRead(t *testing.T) {
	t.Parallel()
	if notranslate.Err != nil {
		t.Errorf("each start reads kubectl's translations: %v", notranslate.Err)
	}
}

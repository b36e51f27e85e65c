package key_test

import (
	"slices"
	"testing"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/multicluster/splitter/key"
)

func TestReferences(t *testing.T) {
	t.Parallel()
	got := key.References("team", []splitter.Reference{{Kind: "Gateway", Name: "b"}, {Kind: "Issuer", Name: "a"}, {Kind: "Issuer", Name: "b"}})
	if want := []string{"team/a", "team/b"}; !slices.Equal(got, want) {
		t.Errorf("References = %q, want %q", got, want)
	}
}

// TestNeedsFindWhatIsNeeded tests that the key of a need is the key of the object that it names,
// whether the need is optional or not.
func TestNeedsFindWhatIsNeeded(t *testing.T) {
	t.Parallel()
	needs := []splitter.Need{{Kind: splitter.KindSecret, Name: "token", Optional: true}, {Kind: splitter.KindConfigMap, Name: "settings"}}
	want := []string{
		key.Follower{Kind: splitter.KindSecret, Namespace: "team", Name: "token"}.String(),
		key.Follower{Kind: splitter.KindConfigMap, Namespace: "team", Name: "settings"}.String(),
	}
	if got := key.Needs("team", needs); !slices.Equal(got, want) {
		t.Errorf("Needs = %q, want %q", got, want)
	}
}

// TestLabelIsNoName tests that a label cannot be mistaken for the name of a root.
func TestLabelIsNoName(t *testing.T) {
	t.Parallel()
	if key.Label("team", "web") == key.Name("team", "web") {
		t.Error("a label and a name have the same key")
	}
}

package jointoken

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var hash = strings.Repeat("0a", 32)

func TestParse(t *testing.T) {
	t.Parallel()
	good := Token{CAHash: hash, ID: "abcd12", Secret: "0123456789abcdef"}
	tests := []struct {
		name, text string
		want       Token
		problem    string
	}{
		{name: "whole", text: good.Text(), want: good},
		{name: "copied with spaces", text: "  " + good.Text() + "\n", want: good},
		{name: "empty", text: "", problem: "four parts"},
		{name: "other form", text: "rik2." + hash + ".abcd12.0123456789abcdef", problem: `begin with "rik1."`},
		{name: "short hash", text: "rik1.0a.abcd12.0123456789abcdef", problem: "64 hexadecimal"},
		{name: "upper-case hash", text: "rik1." + strings.ToUpper(hash) + ".abcd12.0123456789abcdef", problem: "64 hexadecimal"},
		{name: "odd id", text: "rik1." + hash + ".AB_12.0123456789abcdef", problem: "the ID must"},
		{name: "short secret", text: "rik1." + hash + ".abcd12.short", problem: "the secret must"},
		{name: "too many parts", text: good.Text() + ".more", problem: "it has 5"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse(tc.text)
			if tc.problem == "" {
				if err != nil || got != tc.want {
					t.Errorf("Parse() = %v, %v, want %v", got, err, tc.want)
				}
				return
			}
			if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), tc.problem) {
				t.Errorf("Parse() = %v, want ErrMalformed with %q", err, tc.problem)
			}
		})
	}
}

func TestParseNamesEveryProblem(t *testing.T) {
	t.Parallel()
	_, err := Parse("rik1.x.Y.z")
	for _, want := range []string{"hash", "ID", "secret"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse() = %v, want it to name the %s", err, want)
		}
	}
}

func TestStringKeepsTheSecret(t *testing.T) {
	t.Parallel()
	token := Token{CAHash: hash, ID: "abcd12", Secret: "very-secret-text"}
	if got := fmt.Sprintf("%v %s", token, token); strings.Contains(got, token.Secret) {
		t.Errorf("printed %q, which holds the secret", got)
	}
	if !token.SecretIs("very-secret-text") || token.SecretIs("very-secret-tex") {
		t.Error("SecretIs does not distinguish the secret from another text")
	}
}

func TestTextIsReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := Token{
			CAHash: rapid.StringMatching(`[0-9a-f]{64}`).Draw(t, "hash"),
			ID:     rapid.StringMatching(`[a-z0-9]{4,32}`).Draw(t, "id"),
			Secret: rapid.StringMatching(`[A-Za-z0-9_-]{16,64}`).Draw(t, "secret"),
		}
		got, err := Parse(want.Text())
		if err != nil || got != want {
			t.Fatalf("Parse(Text()) = %v, %v, want %v", got, err, want)
		}
	})
}

package jointoken

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	wire "rik.dev/rik/internal/rpc/jointoken"
)

type authority string

func (a authority) Hash() string { return "sha256:" + string(a) }

const caHash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestLifeOfAToken(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	c := fake.NewClientBuilder().Build()
	tokens := New(c, authority(caHash), func() time.Time { return now })

	token, err := tokens.Create(t.Context(), Options{Life: time.Hour, Description: "rack 7"})
	if err != nil {
		t.Fatal(err)
	}
	if token.CAHash != caHash {
		t.Errorf("the token's hash is %s, want %s", token.CAHash, caHash)
	}
	if err := tokens.Verify(t.Context(), token.Text()); err != nil {
		t.Errorf("Verify of a new token: %v", err)
	}

	var stored corev1.Secret
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: "join-token-" + token.ID}, &stored); err != nil {
		t.Fatal(err)
	}
	for key, value := range stored.Data {
		if string(value) == token.Secret {
			t.Errorf("key %s holds the secret itself", key)
		}
	}

	infos, err := tokens.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].ID != token.ID || infos[0].Description != "rack 7" || !infos[0].Expires.Equal(now.Add(time.Hour)) || infos[0].Uses != 0 || infos[0].LastUsed != nil {
		t.Errorf("List() = %+v, %v, want the one token", infos, err)
	}

	wrong := token
	wrong.Secret = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	unknown := token
	unknown.ID = "ffffffffff"
	for name, text := range map[string]string{"wrong secret": wrong.Text(), "unknown": unknown.Text(), "no token": "hello"} {
		if err := tokens.Verify(t.Context(), text); !errors.Is(err, ErrRefused) {
			t.Errorf("Verify of a token with %s = %v, want ErrRefused", name, err)
		}
	}

	now = now.Add(time.Hour)
	if err := tokens.Verify(t.Context(), token.Text()); !errors.Is(err, ErrRefused) {
		t.Errorf("Verify of an expired token = %v, want ErrRefused", err)
	}
	now = now.Add(-time.Minute)
	if err := tokens.Delete(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Verify(t.Context(), token.Text()); !errors.Is(err, ErrRefused) {
		t.Errorf("Verify of a revoked token = %v, want ErrRefused", err)
	}
}

func TestCheckRefusesOtherSecrets(t *testing.T) {
	t.Parallel()
	token := wire.Token{CAHash: caHash, ID: "abcde", Secret: "0123456789abcdef"}
	stored := &corev1.Secret{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{keyHash: []byte(hash(token.Secret))}}
	if err := check(stored, token, time.Now()); !errors.Is(err, ErrRefused) {
		t.Errorf("check of an opaque secret = %v, want ErrRefused", err)
	}
}

func TestCreateRefusesAPastExpiry(t *testing.T) {
	t.Parallel()
	tokens := New(fake.NewClientBuilder().Build(), authority(caHash), time.Now)
	if _, err := tokens.Create(t.Context(), Options{Life: -time.Second}); err == nil {
		t.Error("Create with a negative life succeeded")
	}
}

// TestUse: uses are counted, and a token that was just revoked is refused.
func TestUse(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	tokens := New(fake.NewClientBuilder().Build(), authority(caHash), func() time.Time { return now })
	token, err := tokens.Create(t.Context(), Options{Life: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := tokens.Use(t.Context(), token.Text()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	infos, err := tokens.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].Uses != 20 || infos[0].LastUsed == nil || !infos[0].LastUsed.Equal(now) {
		t.Errorf("after 20 uses List() = %+v, %v", infos, err)
	}
	if err := tokens.Verify(t.Context(), token.Text()); err != nil {
		t.Errorf("Verify after uses: %v", err)
	}
	if err := tokens.Delete(t.Context(), token.ID); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Use(t.Context(), token.Text()); !errors.Is(err, ErrRefused) {
		t.Errorf("Use of a revoked token = %v, want ErrRefused", err)
	}
	if err := tokens.Delete(t.Context(), token.ID); !apierrors.IsNotFound(err) {
		t.Errorf("Delete of a revoked token = %v, want 404", err)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	other := &corev1.Secret{Type: corev1.SecretTypeOpaque, ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: "join-token-other"}}
	tokens := New(fake.NewClientBuilder().WithObjects(other).Build(), authority(caHash), func() time.Time { return now })
	ask := func(method, path, body string, want int, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		tokens.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != want || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s = %d %s, want %d", method, path, w.Code, w.Body, want)
		}
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Errorf("%s %s: %v", method, path, err)
		}
	}
	var made wire.Created
	ask("POST", wire.Path, `{"seconds":60,"description":"rack 7"}`, 201, &made)
	if err := tokens.Verify(t.Context(), made.Token); err != nil || !made.Info.Expires.Equal(now.Add(time.Minute)) {
		t.Errorf("made was %+v, %v", made.Info, err)
	}
	var list wire.List
	ask("GET", wire.Path, "", 200, &list)
	if len(list.Items) != 1 || list.Items[0].ID != made.Info.ID || list.Items[0].Description != "rack 7" {
		t.Errorf("listed are %+v", list.Items)
	}
	var status metav1.Status
	for _, body := range []string{"", "{", `{"ttl":1}`, `{"seconds":-1}`, `{"seconds":9999999999}`, `{"description":"` + strings.Repeat("x", 300) + `"}`} {
		ask("POST", wire.Path, body, 400, &status)
	}
	ask("DELETE", wire.Path+"other", "", 404, &status)
	ask("DELETE", wire.Path+"../x", "", 400, &status)
	ask("DELETE", wire.Path, "", 405, &status)
	ask("PUT", wire.Path+made.Info.ID, "", 405, &status)
	ask("DELETE", wire.Path+made.Info.ID, "", 200, &status)
	ask("DELETE", wire.Path+made.Info.ID, "", 404, &status)
	if status.Reason != metav1.StatusReasonNotFound {
		t.Errorf("the refusal is %+v, want a Status with its reason", status)
	}
}

// TestATokenOfAClockThatWasAhead: a token that was created later than now has ended, and stays
// ended when that time comes. This does not apply to a token without an expiry time, or to one
// of a clock that differs only a little.
func TestATokenOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ahead, life time.Duration
		old, swept  bool // by an earlier version; ended by Run before its first use
		refused     bool
	}{
		"a year":                        {ahead: 365 * 24 * time.Hour, life: time.Hour, refused: true},
		"an hour":                       {ahead: time.Hour, life: 24 * time.Hour, refused: true},
		"an hour, unused":               {ahead: time.Hour, life: 24 * time.Hour, swept: true, refused: true},
		"an hour, an earlier version's": {ahead: time.Hour, life: 24 * time.Hour, old: true, refused: true},
		"a minute":                      {ahead: time.Minute, life: 24 * time.Hour},
		"without an end":                {ahead: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			right := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
			now := right.Add(tc.ahead)
			c := fake.NewClientBuilder().Build()
			tokens := New(c, authority(caHash), func() time.Time { return now })
			token, err := tokens.Create(t.Context(), Options{Life: tc.life})
			if err != nil {
				t.Fatal(err)
			}
			if tc.old {
				var stored corev1.Secret
				key := client.ObjectKey{Namespace: Namespace, Name: namePrefix + token.ID}
				if err := c.Get(t.Context(), key, &stored); err != nil {
					t.Fatal(err)
				}
				delete(stored.Data, keyCreated)
				stored.CreationTimestamp, stored.ResourceVersion = metav1.NewTime(now), ""
				if err := errors.Join(c.Delete(t.Context(), &stored), c.Create(t.Context(), &stored)); err != nil {
					t.Fatal(err)
				}
			}
			now = right
			if infos, err := tokens.List(t.Context()); err != nil || len(infos) != 1 || (infos[0].Expires != nil && !infos[0].Expires.After(right)) != tc.refused {
				t.Errorf("List() = %+v, %v; expired: want %v", infos, err, tc.refused)
			}
			if tc.swept {
				if err := tokens.endAll(t.Context(), slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
			} else if err := tokens.Use(t.Context(), token.Text()); errors.Is(err, ErrRefused) != tc.refused {
				t.Errorf("Use = %v; refused: want %v", err, tc.refused)
			}
			now = right.Add(tc.ahead + time.Minute) // it would be valid now
			if err := tokens.Verify(t.Context(), token.Text()); errors.Is(err, ErrRefused) != tc.refused {
				t.Errorf("Verify at the time when it was made = %v; refused: want %v", err, tc.refused)
			}
		})
	}
}

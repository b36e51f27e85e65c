package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const testValidity = 30 * 24 * time.Hour

func clientLeafConfig(a *Authority, dir string) LeafConfig {
	return LeafConfig{
		Issue: func(context.Context) ([]byte, []byte, error) {
			return a.IssueClient(pkix.Name{CommonName: "me"}, testValidity)
		},
		CertFile: filepath.Join(dir, "me.crt"),
		KeyFile:  filepath.Join(dir, "me.key"),
	}
}

func serial(l *Leaf) string { return l.current().Leaf.SerialNumber.String() }

func TestLeafIsReusedWhileItFits(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(t *testing.T, cfg *LeafConfig)
		reused bool
	}{
		{"unchanged", func(*testing.T, *LeafConfig) {}, true},
		{"refused by Accept", func(_ *testing.T, cfg *LeafConfig) {
			cfg.Accept = func(*x509.Certificate) error { return errors.New("other hosts") }
		}, false},
		{"key lost", func(t *testing.T, cfg *LeafConfig) {
			remove(t, filepath.Dir(cfg.KeyFile), filepath.Base(cfg.KeyFile))
		}, false},
		{"halves of two renewals", func(t *testing.T, cfg *LeafConfig) {
			_, keyPEM, err := cfg.Issue(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Dir(cfg.KeyFile), filepath.Base(cfg.KeyFile), keyPEM)
		}, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := clientLeafConfig(newAuthorityForTest(t), t.TempDir())
			first, err := NewLeaf(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			tc.change(t, &cfg)
			second, err := NewLeaf(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := serial(first) == serial(second); got != tc.reused {
				t.Errorf("reused = %t, want %t", got, tc.reused)
			}
		})
	}
}

func TestLeafRenewsItself(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := LoadOrCreate(filepath.Join(dir, "ca"))
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := NewLeaf(t.Context(), clientLeafConfig(a, dir))
		if err != nil {
			t.Fatal(err)
		}
		notified := 0
		leaf.Notify(func() { notified++ })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- leaf.Run(ctx) }()

		first := serial(leaf)
		time.Sleep(testValidity/2 + time.Hour)
		synctest.Wait()
		if serial(leaf) != first {
			t.Error("renewed before two thirds of its life were over")
		}
		time.Sleep(testValidity / 4)
		synctest.Wait()
		if serial(leaf) == first || notified != 1 {
			t.Errorf("renewed = %t, notified %d times, want one renewal", serial(leaf) != first, notified)
		}
		stored, err := NewLeaf(t.Context(), clientLeafConfig(a, dir))
		if err != nil {
			t.Fatal(err)
		}
		if serial(stored) != serial(leaf) {
			t.Error("the renewed certificate was not stored")
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil after cancellation", err)
		}
	})
}

func TestLeafTriesAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := LoadOrCreate(filepath.Join(dir, "ca"))
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		leaf, err := NewLeaf(t.Context(), LeafConfig{Issue: func(context.Context) ([]byte, []byte, error) {
			tries++
			if tries == 2 || tries == 3 {
				return nil, nil, errors.New("the authority is away")
			}
			return a.IssueClient(pkix.Name{CommonName: "me"}, testValidity)
		}})
		if err != nil {
			t.Fatal(err)
		}
		first, _ := leaf.PEM()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- leaf.Run(ctx) }()
		time.Sleep(testValidity*2/3 + 2*retryRenewal + time.Second)
		synctest.Wait()
		if second, _ := leaf.PEM(); tries != 4 || bytes.Equal(first, second) {
			t.Errorf("after two refusals: %d tries, want the fourth to have renewed", tries)
		}
		cancel()
		<-done
	})
}

func TestNewLeafRefuses(t *testing.T) {
	t.Parallel()
	broken := errors.New("no authority")
	issue := func(context.Context) ([]byte, []byte, error) { return nil, nil, broken }
	tests := []struct {
		name string
		cfg  LeafConfig
		want error
	}{
		{"no issuer", LeafConfig{}, nil},
		{"half a store", LeafConfig{Issue: issue, CertFile: "x"}, nil},
		{"issuer breaks", LeafConfig{Issue: issue}, broken},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			leaf, err := NewLeaf(t.Context(), tc.cfg)
			if err == nil || leaf != nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("NewLeaf() = %v, %v, want no leaf and error %v", leaf, err, tc.want)
			}
		})
	}
}

// A leaf that was issued while the clock was ahead is not valid yet. It is replaced at the next
// start, and while the program runs.
func TestLeafOfAClockThatWasAhead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a, err := LoadOrCreate(filepath.Join(dir, "ca"))
		if err != nil {
			t.Fatal(err)
		}
		cfg := clientLeafConfig(a, dir)
		issue := cfg.Issue
		var ahead atomic.Bool
		var issued atomic.Int64
		cfg.Issue = func(ctx context.Context) ([]byte, []byte, error) {
			number := issued.Add(1)
			if !ahead.Load() {
				return issue(ctx)
			}
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				return nil, nil, err
			}
			from := time.Now().Add(24 * time.Hour)
			template := &x509.Certificate{SerialNumber: big.NewInt(number), NotBefore: from, NotAfter: from.Add(testValidity)}
			der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
			if err != nil {
				return nil, nil, err
			}
			keyDER, err := x509.MarshalPKCS8PrivateKey(key)
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), err
		}
		valid := func(l *Leaf) bool { return !time.Now().Before(l.current().Leaf.NotBefore) }
		ahead.Store(true)
		if leaf, err := NewLeaf(t.Context(), cfg); err != nil || valid(leaf) {
			t.Fatalf("the leaf is valid already, %v", err)
		}
		ahead.Store(false)
		leaf, err := NewLeaf(t.Context(), cfg)
		if err != nil || !valid(leaf) {
			t.Errorf("after a start the leaf is not valid, %v", err)
		}
		ahead.Store(true)
		if err := leaf.Renew(t.Context()); err != nil || valid(leaf) {
			t.Fatalf("the leaf is valid already, %v", err)
		}
		issued.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- leaf.Run(ctx) }()
		time.Sleep(10*retryRenewal - time.Second)
		synctest.Wait()
		if got := issued.Load(); got != 10 {
			t.Errorf("an issuer whose clock is ahead was asked %d times in 10 minutes, want 10", got)
		}
		ahead.Store(false)
		time.Sleep(retryRenewal)
		synctest.Wait()
		if !valid(leaf) {
			t.Error("the leaf was not replaced while the program runs")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

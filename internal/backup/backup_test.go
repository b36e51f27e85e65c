package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
)

const passphrase = "correct horse battery staple"

// work makes the passphrase of tests cheap.
func cheap(t testing.TB) Recipients {
	t.Helper()
	r, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(10)
	return Recipients{recipients: []age.Recipient{r}}
}

func identity(t testing.TB, passphrase string) Identities {
	t.Helper()
	i, err := PassphraseIdentity(passphrase)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// write returns a backup with two files and some objects.
func write(t testing.TB, to Recipients, objects int) ([]byte, *Manifest) {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, to, Header{Version: "v1.2.3", Cluster: "c1", Profile: "cluster", Datastore: "etcd", Revision: 7, Term: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"pki/ca.key", "profile"} {
		if err := w.AddFile(file, []byte("content of "+file)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range objects {
		if err := w.AddEntry(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := w.Close()
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), m
}

func entry(i int) Entry {
	e := Entry{Key: fmt.Appendf(nil, "/registry/secrets/default/s%06d", i), Value: bytes.Repeat([]byte{byte(i), byte(i >> 8), 0}, 300)}
	if i%3 == 0 {
		e.Key = fmt.Appendf(nil, "/registry/rik.dev/instances/default/i%06d", i)
		e.TTL = time.Duration(i) * time.Second
	}
	return e
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	const objects = 20_000 // several parts
	for name, tc := range map[string]struct {
		to   Recipients
		keys Identities
	}{
		"encrypted": {cheap(t), identity(t, passphrase)},
		"plain":     {Recipients{Unencrypted: true}, Identities{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, written := write(t, tc.to, objects)
			if name == "encrypted" && (bytes.Contains(file, []byte("ca.key")) || bytes.Contains(file, []byte("registry"))) {
				t.Error("the encrypted backup contains plain text")
			}
			first, err := Read(t.Context(), bytes.NewReader(file), tc.keys, nil, Visitor{})
			if err != nil || !first.equal(written) || first.Header != written.Header {
				t.Fatalf("Read() = %+v, %v, want the manifest that was written", first, err)
			}
			files, count := map[string]string{}, 0
			_, err = Read(t.Context(), bytes.NewReader(file), tc.keys, first, Visitor{
				File: func(name string, content []byte) error { files[name] = string(content); return nil },
				Entry: func(e Entry) error {
					want := entry(count)
					if !bytes.Equal(e.Key, want.Key) || !bytes.Equal(e.Value, want.Value) || e.TTL != want.TTL {
						return fmt.Errorf("entry %d is %q", count, e.Key)
					}
					count++
					return nil
				},
			})
			if err != nil || count != objects || !maps.Equal(files, map[string]string{"pki/ca.key": "content of pki/ca.key", "profile": "content of profile"}) {
				t.Errorf("Read() delivered %d entries and %v, %v", count, files, err)
			}
			if len(first.Parts) < 5 || first.Resources["secrets"]+first.Resources["rik.dev/instances"] != objects {
				t.Errorf("the manifest has %d parts and counts %v", len(first.Parts), first.Resources)
			}
			if h, err := ReadHeader(t.Context(), bytes.NewReader(file), tc.keys); err != nil || h != written.Header {
				t.Errorf("ReadHeader() = %+v, %v", h, err)
			}
		})
	}
}

func TestRecipients(t *testing.T) {
	t.Parallel()
	if err := (Recipients{}).Validate(); !errors.Is(err, ErrUnprotected) {
		t.Errorf("Validate() of no recipient = %v, want ErrUnprotected", err)
	}
	if _, err := NewWriter(io.Discard, Recipients{}, Header{Profile: "cluster"}); !errors.Is(err, ErrUnprotected) {
		t.Errorf("NewWriter() without a recipient = %v, want ErrUnprotected", err)
	}
	if _, err := Passphrase("short"); err == nil {
		t.Error("a short passphrase is accepted")
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseRecipients(key.String()); err == nil || strings.Contains(err.Error(), key.String()) {
		t.Errorf("ParseRecipients() of a secret key = %v, want an error without the key", err)
	}
	to, err := ParseRecipients(key.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	file, _ := write(t, to, 3)
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("# created: today\n"+key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadIdentities(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), bytes.NewReader(file), keys, nil, Visitor{}); err != nil {
		t.Errorf("Read() with the identity = %v", err)
	}
	if _, err := ParseIdentities([]byte("AGE-SECRET-KEY-1BROKEN")); err == nil || strings.Contains(err.Error(), "BROKEN") {
		t.Errorf("ParseIdentities() of a broken key = %v, want an error without the key", err)
	}
}

// TestOtherFilesAreRefused: every change of a file is found, and the error says what is wrong.
func TestOtherFilesAreRefused(t *testing.T) {
	t.Parallel()
	sealed, _ := write(t, cheap(t), 300)
	plain, _ := write(t, Recipients{Unencrypted: true}, 300)
	keys := identity(t, passphrase)
	for name, tc := range map[string]struct {
		file []byte
		keys Identities
		want error
	}{
		"empty":                  {nil, keys, ErrNotBackup},
		"text":                   {[]byte("apiVersion: v1\nkind: List\nitems: []\n"), keys, ErrNotBackup},
		"another zstd file":      {compress(t, bytes.Repeat([]byte("hello"), 500)), keys, ErrNotBackup},
		"another archive":        {archive(t, "etc/passwd", "root"), keys, ErrNotBackup},
		"wrong passphrase":       {sealed, identity(t, "another passphrase"), ErrKey},
		"no passphrase":          {sealed, Identities{}, ErrKey},
		"only the age header":    {sealed[:100], keys, ErrTruncated},
		"newer format":           {archive(t, HeaderName, `{"format":2,"id":"x","profile":"cluster","version":"v9"}`), keys, ErrVersion},
		"no manifest":            {archive(t, HeaderName, `{"format":1,"id":"x","profile":"cluster"}`), keys, ErrTruncated},
		"a file above":           {archive(t, HeaderName, `{"format":1,"id":"x","profile":"cluster"}`, "files/../../etc/passwd", "x"), keys, ErrDamaged},
		"an absolute file":       {archive(t, HeaderName, `{"format":1,"id":"x","profile":"cluster"}`, "files//etc/passwd", "x"), keys, ErrDamaged},
		"something after it":     {append(slices.Clone(plain), compress(t, make([]byte, 2048))...), keys, ErrDamaged},
		"garbage after it":       {append(slices.Clone(sealed), "garbage"...), keys, ErrDamaged},
		"a manifest of another":  {archive(t, HeaderName, `{"format":1,"id":"x","profile":"cluster"}`, ManifestName, `{"format":1,"id":"y","profile":"cluster"}`), keys, ErrDamaged},
		"a manifest with a part": {archive(t, HeaderName, `{"format":1,"id":"x","profile":"cluster"}`, ManifestName, `{"format":1,"id":"x","profile":"cluster","objects":1}`), keys, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Read(t.Context(), bytes.NewReader(tc.file), tc.keys, nil, Visitor{}); !errors.Is(err, tc.want) {
				t.Errorf("Read() = %v, want %v", err, tc.want)
			}
		})
	}
	refused := func(what string, file []byte) {
		_, err := Read(t.Context(), bytes.NewReader(file), keys, nil, Visitor{})
		if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrNotBackup) && !errors.Is(err, ErrKey) && !errors.Is(err, ErrVersion) {
			t.Errorf("Read() of a file %s = %v, want one of the errors of this package", what, err)
		}
	}
	for kind, file := range map[string][]byte{"encrypted": sealed, "plain": plain} {
		for cut := 0; cut < len(file); cut += max(len(file)/60, 1) {
			refused(fmt.Sprintf("%s, cut at %d of %d", kind, cut, len(file)), file[:cut])
		}
		refused(kind+", cut before its last byte", file[:len(file)-1])
		for at := 0; at < len(file); at += max(len(file)/150, 1) {
			flipped := slices.Clone(file)
			flipped[at] ^= 1 << (at % 8)
			refused(fmt.Sprintf("%s, flipped at %d of %d", kind, at, len(file)), flipped)
		}
	}
}

// TestAFileThatChangesIsRefused: the visitor of a second reading gets nothing that the first has not
// verified.
func TestAFileThatChangesIsRefused(t *testing.T) {
	t.Parallel()
	first, m := write(t, Recipients{Unencrypted: true}, 3)
	second, _ := write(t, Recipients{Unencrypted: true}, 4)
	got := 0
	_, err := Read(t.Context(), bytes.NewReader(second), Identities{}, m, Visitor{
		File:  func(string, []byte) error { got++; return nil },
		Entry: func(Entry) error { got++; return nil },
	})
	if !errors.Is(err, ErrDamaged) || got > 0 {
		t.Errorf("Read() = %v after %d items, want ErrDamaged before the first", err, got)
	}
	if _, err := Read(t.Context(), bytes.NewReader(first), Identities{}, m, Visitor{}); err != nil {
		t.Errorf("Read() of the same file = %v", err)
	}
}

func TestACanceledReadingEnds(t *testing.T) {
	t.Parallel()
	file, _ := write(t, Recipients{Unencrypted: true}, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Read(ctx, bytes.NewReader(file), Identities{}, nil, Visitor{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Read() = %v, want context.Canceled", err)
	}
}

func TestResource(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"/registry/secrets/default/a":           "secrets",
		"/registry/rik.dev/instances/default/a": "rik.dev/instances",
		"/registry/namespaces/default":          "namespaces",
		"/rik.dev/cluster":                      "cluster",
	} {
		if got := Resource(key); got != want {
			t.Errorf("Resource(%q) = %q, want %q", key, got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	plain, _ := write(f, Recipients{Unencrypted: true}, 3)
	f.Add(plain)
	f.Add([]byte(ageMagic + "v1\n-> X25519 x\n"))
	f.Fuzz(func(t *testing.T, file []byte) {
		m, err := Read(t.Context(), bytes.NewReader(file), Identities{}, nil, Visitor{File: func(name string, _ []byte) error {
			if !filepath.IsLocal(name) {
				t.Errorf("the file %q is outside of the directory", name)
			}
			return nil
		}})
		if err == nil && m.ID == "" {
			t.Error("a backup without an ID is accepted")
		}
	})
}

func compress(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// archive returns a compressed archive of names and contents in turn.
func archive(t testing.TB, items ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(items); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: items[i], Mode: 0o600, Size: int64(len(items[i+1]))})
		if err == nil {
			_, err = w.Write([]byte(items[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compress(t, out.Bytes())
}

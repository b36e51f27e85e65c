package apiserver_test

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/testkit/apiprocess"
)

// damages are what may happen to a file. Each returns false if it does not apply.
var damages = []struct {
	name string
	do   func(path string, random *rand.Rand) (bool, error)
}{
	{"flipped bit", flipUsedBit},
	{"deleted", func(path string, _ *rand.Rand) (bool, error) { return true, os.Remove(path) }},
	{"truncated", func(path string, random *rand.Rand) (bool, error) {
		info, err := os.Stat(path)
		if err != nil || info.Size() == 0 {
			return false, err
		}
		return true, os.Truncate(path, random.Int64N(info.Size()))
	}},
}

func flipUsedBit(path string, random *rand.Rand) (bool, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	var used []int
	for i, b := range content {
		if b != 0 {
			used = append(used, i)
		}
	}
	if len(used) == 0 {
		return false, nil
	}
	content[used[random.IntN(len(used))]] ^= 1 << random.IntN(8)
	return true, os.WriteFile(path, content, 0o600)
}

// TestADamagedFileNeverChangesObjects damages each file of a data directory: a flipped bit, a
// deletion, a truncation. The server then either serves exactly what was stored, or ends with an
// error that names a file and a next step. RIK_DRILL_ROUNDS runs all damages that many times; by
// default each file gets one.
func TestADamagedFileNeverChangesObjects(t *testing.T) {
	t.Parallel()
	rounds, seed := 0, uint64(rand.Uint32())
	if text := os.Getenv("RIK_DRILL_ROUNDS"); text != "" {
		rounds = number(t, text)
	}
	if text := os.Getenv("RIK_DRILL_SEED"); text != "" {
		seed = uint64(number(t, text))
	}
	t.Logf("RIK_DRILL_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for _, kind := range []apiprocess.Kind{apiprocess.Cluster, apiprocess.SQLite} {
		whole := t.TempDir()
		want := stored(t, whole, kind)
		served, refused := 0, 0
		for _, name := range filesIn(t, apiprocess.Data(whole)) {
			if kind == apiprocess.SQLite && !strings.HasPrefix(name, "datastore") {
				continue // the keys are the same
			}
			chosen := damages
			if rounds == 0 {
				i := random.IntN(len(damages))
				chosen = damages[i : i+1]
			}
			for range max(rounds, 1) {
				for _, damage := range chosen {
					got, err := afterDamage(t, whole, name, kind, func(path string) (bool, error) { return damage.do(path, random) })
					switch {
					case err == nil && got == nil: // the damage does not apply
					case err == nil && slices.Equal(got, want):
						served++
					case err == nil:
						t.Errorf("%s: %s, %s: the server serves\n%q, want\n%q", kind, name, damage.name, got, want)
					default:
						refused++
						if text := err.Error(); strings.Contains(text, "panic:") || strings.Contains(text, "goroutine ") || !strings.Contains(text, whole) && !strings.Contains(text, "data") {
							t.Errorf("%s: %s, %s: the server ended with\n%s", kind, name, damage.name, text)
						}
					}
				}
			}
		}
		t.Logf("%s: served %d times, refused %d times", kind, served, refused)
		if served+refused == 0 {
			t.Errorf("%s: no file was damaged", kind)
		}
	}
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stored creates objects on a new server, stops it, and returns what it served.
func stored(t *testing.T, dir string, kind apiprocess.Kind) []string {
	t.Helper()
	s, err := apiprocess.Run(dir, kind)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 12 {
		name := metav1.ObjectMeta{Name: fmt.Sprintf("drill-%d", i), Namespace: metav1.NamespaceDefault}
		content := strings.Repeat(fmt.Sprint(i), 60)
		_, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: name, Data: map[string]string{"k": content}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Client.CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(), &corev1.Secret{ObjectMeta: name, StringData: map[string]string{"k": content}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return served(t, s)
}

// served returns the drill's objects as a server serves them.
func served(t *testing.T, s *apiprocess.Server) (all []string) {
	t.Helper()
	maps, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range maps.Items {
		all = append(all, fmt.Sprint(m.Name, m.UID, m.Data))
	}
	secrets, err := s.Client.CoreV1().Secrets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range secrets.Items {
		all = append(all, fmt.Sprint(m.Name, m.UID, m.Data))
	}
	return all
}

// filesIn returns the files of a stopped server, relative to its data directory.
func filesIn(t *testing.T, data string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || entry.Name() == "lock" || strings.HasSuffix(path, ".tmp") {
			return err
		}
		name, err := filepath.Rel(data, path)
		names = append(names, name)
		return err
	})
	if err != nil || len(names) < 8 {
		t.Fatalf("the files of a server are %q, %v", names, err)
	}
	return names
}

// afterDamage runs a server on a copy of the files in whole, one of which is damaged. It returns
// what the server serves, or its error.
func afterDamage(t *testing.T, whole, name string, kind apiprocess.Kind, damage func(path string) (bool, error)) ([]string, error) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rik-damage-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir) // at once, as a log of etcd has 64 MB
	if err := os.CopyFS(apiprocess.Data(dir), os.DirFS(apiprocess.Data(whole))); err != nil {
		t.Fatal(err)
	}
	private(t, apiprocess.Data(dir))
	applies, err := damage(filepath.Join(apiprocess.Data(dir), name))
	if err != nil {
		t.Fatal(err)
	}
	if !applies {
		return nil, nil
	}
	s, err := apiprocess.Run(dir, kind)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return nil, fmt.Errorf("%w\n%s", err, log)
	}
	got := served(t, s)
	return got, s.Stop()
}

// private gives copied files the modes that the server wants.
func private(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckFiles: the check of a whole directory finds nothing, and reads every object. A missing
// key is a problem.
func TestCheckFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	stored(t, dir, apiprocess.Cluster)
	cfg := apiserver.Config{DataDir: apiprocess.Data(dir), Logger: slog.New(slog.DiscardHandler)}
	report, err := apiserver.CheckFiles(t.Context(), cfg)
	if err != nil || report.Err() != nil {
		t.Fatalf("CheckFiles() = %+v, %v", report, err)
	}
	if got := report.Results[len(report.Results)-1].Detail; !strings.Contains(got, " objects match their checksums") || strings.HasPrefix(got, "0 ") {
		t.Errorf("the detail of the datastore is %q", got)
	}
	key := filepath.Join(cfg.DataDir, "pki", "service-account.key")
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	report, err = apiserver.CheckFiles(t.Context(), cfg)
	if err != nil || report.Err() == nil || report.Results[0].Path != key {
		t.Errorf("CheckFiles() without %s = %+v, %v", key, report, err)
	}
	if _, err := apiserver.CheckFiles(t.Context(), apiserver.Config{DataDir: filepath.Join(dir, "nothing"), Logger: cfg.Logger}); err == nil || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("CheckFiles() without a directory = %v", err)
	}
}

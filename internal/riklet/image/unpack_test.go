package image

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"rik.dev/rik/internal/ociimage"
	"rik.dev/rik/internal/riklet/image/internal/wire"
	"rik.dev/rik/internal/riklet/image/unpack"
)

// A riklet that is killed leaves no child behind. The end of its input ends the child's
// transfer, here one that the registry would never finish.
func TestUnpackEndsWithItsInput(t *testing.T) {
	t.Parallel()
	dir, _, _ := layout(t, small())
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	host := registry(t, &ociimage.Registry{Dir: dir, Before: func(string) {
		once.Do(func() { close(held) })
		<-release
	}})
	t.Cleanup(func() { close(release) })
	tmp := t.TempDir()
	for _, sub := range []string{"layers", "pull"} {
		if err := os.Mkdir(filepath.Join(tmp, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	stdin, order := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- unpack.Unpack(t.Context(), nil, stdin, io.Discard) }()
	err := json.NewEncoder(order).Encode(wire.Request{
		Transport: "docker", Target: host + "/app:v1",
		LayersDir: filepath.Join(tmp, "layers"), TempDir: filepath.Join(tmp, "pull"),
		RegistriesConf: os.DevNull, AllowNetworks: loopback,
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, held, done)
	if err := order.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("Unpack ended well without its store")
	}
	if layers, err := os.ReadDir(filepath.Join(tmp, "layers")); err != nil || len(layers) != 0 {
		t.Errorf("layers: %v, %v; want none", layers, err)
	}
}

func TestUnpackRefusesArgumentsAndNoise(t *testing.T) {
	t.Parallel()
	if err := unpack.Unpack(t.Context(), []string{"x"}, os.Stdin, io.Discard); err == nil {
		t.Error("an argument is accepted")
	}
	stdin, order := io.Pipe()
	go func() {
		_, _ = io.WriteString(order, "noise")
		_ = order.Close()
	}()
	if err := unpack.Unpack(t.Context(), nil, stdin, io.Discard); err == nil {
		t.Error("noise is accepted")
	}
}

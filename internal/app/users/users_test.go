package users

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestMeans(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		program string
		args    []string
		want    bool
	}{
		{"rik", []string{"deploy", "-f", "x"}, true},
		{"rik", []string{"get", "apps"}, true},
		{"rik", []string{"delete", "nginx"}, true},
		{"rik", []string{"server"}, false},
		{"rik", nil, false},
		{"controller", []string{"get"}, false},
	} {
		if got := Means(tc.program, tc.args); got != tc.want {
			t.Errorf("Means(%s, %v) = %v, want %v", tc.program, tc.args, got, tc.want)
		}
	}
}

func TestFindRikctl(t *testing.T) {
	program := func(dir string) string {
		path := filepath.Join(dir, "rikctl")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty, beside, onPath := t.TempDir(), t.TempDir(), t.TempDir()
	t.Setenv("PATH", empty)
	if _, err := findRikctl(filepath.Join(empty, "rik")); !errors.Is(err, errNoRikctl) {
		t.Errorf("findRikctl() without any = %v", err)
	}
	t.Setenv("PATH", onPath)
	second := program(onPath)
	if got, err := findRikctl(filepath.Join(empty, "rik")); err != nil || got != second {
		t.Errorf("findRikctl() = %q, %v, want %q", got, err, second)
	}
	first := program(beside)
	if got, err := findRikctl(filepath.Join(beside, "rik")); err != nil || got != first {
		t.Errorf("findRikctl() = %q, %v, want %q", got, err, first)
	}
}

package apiserver

import (
	"log/slog"
	"strings"
	"testing"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	logger := slog.New(slog.DiscardHandler)
	tests := []struct {
		name string
		cfg  Config
		says []string // none if it is valid
	}{
		{"least", Config{DataDir: "/d", Logger: logger}, nil},
		{"everything", Config{
			DataDir: "/d", Logger: logger, BindAddress: "::", Port: 5000, AdvertiseAddress: "10.0.0.1", ClusterName: "a.b", Profile: ProfileKCP,
			ExtraSANs: []string{"rik.example", "*.rik.example", "10.0.0.2"}, InsecureLegacyAddress: "[::1]:5001",
		}, nil},
		{"nothing", Config{}, []string{"data directory", "logger"}},
		{"port", Config{DataDir: "/d", Logger: logger, Port: 65536}, []string{"port 65536"}},
		{"all addresses", Config{DataDir: "/d", Logger: logger, BindAddress: "localhost", AdvertiseAddress: "x"}, []string{`bind address "localhost"`, `advertise address "x"`}},
		{"names", Config{DataDir: "/d", Logger: logger, ClusterName: "A b", ExtraSANs: []string{"a b"}, Profile: "x"}, []string{`"A b"`, `"a b"`, `profile "x"`}},
		{"legacy to the network", Config{DataDir: "/d", Logger: logger, InsecureLegacyAddress: "0.0.0.0:5001"}, []string{"not a loopback"}},
		{"legacy by name", Config{DataDir: "/d", Logger: logger, InsecureLegacyAddress: "localhost:5001"}, []string{"not a loopback"}},
		{"legacy without port", Config{DataDir: "/d", Logger: logger, InsecureLegacyAddress: "127.0.0.1"}, []string{"missing port"}},
		{"datastore", Config{DataDir: "/d", Logger: logger, DatastoreEndpoint: "redis://x"}, []string{`"redis"`}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := tc.cfg.Validate()
			if (err != nil) != (len(tc.says) > 0) {
				t.Fatalf("Validate() = %v, want an error: %t", err, len(tc.says) > 0)
			}
			for _, text := range tc.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("Validate() = %q, want it to say %q", err, text)
				}
			}
		})
	}
}

func TestRouteMatches(t *testing.T) {
	t.Parallel()
	tests := []struct {
		route, path string
		want        bool
	}{
		{"/api/v0/", "/api/v0/workloads.list", true},
		{"/api/v0/", "/api/v0/", true},
		{"/api/v0/", "/api/v0", false},
		{"/api/v1/instances.list", "/api/v1/instances.list", true},
		{"/api/v1/instances.list", "/api/v1/instances.list/x", false},
		{"/api/v1/instances.list", "/api/v1/instances.lists", false},
	}
	for _, tc := range tests {
		if got := (Route{Path: tc.route}).matches(tc.path); got != tc.want {
			t.Errorf("Route(%q).matches(%q) = %t, want %t", tc.route, tc.path, got, tc.want)
		}
	}
}

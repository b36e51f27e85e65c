package clusterid

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func identity(id string) *Identity {
	return &Identity{ID: id, Profile: "cluster", Authority: "aa", Keys: map[string][]string{"encryption.yaml": {"k1"}}}
}

func TestFind(t *testing.T) {
	t.Parallel()
	file := func(id string) *File { return &File{Identity: *identity(id), Datastore: "etcd at https://before:2379"} }
	for name, tc := range map[string]struct {
		s    Situation
		want Start
		err  string // part of the error; empty: none
	}{
		"a first start":                      {Situation{Empty: true}, First, ""},
		"a restart":                          {Situation{File: file("a"), Stored: identity("a")}, Known, ""},
		"the same store, moved":              {Situation{File: file("a"), Stored: identity("a"), Datastore: "elsewhere"}, Known, ""},
		"a second server of one store":       {Situation{Stored: identity("a")}, Known, ""},
		"a store of a version before":        {Situation{Used: true}, Unmarked, ""},
		"the store was moved away":           {Situation{File: file("a"), Empty: true}, 0, "whose last datastore was etcd at https://before:2379"},
		"it was never marked, and is away":   {Situation{Used: true, Empty: true}, 0, "has already used"},
		"another cluster's store":            {Situation{File: file("a"), Stored: identity("b")}, 0, "belongs to the cluster b"},
		"another cluster is meant":           {Situation{File: file("a"), Empty: true, NewCluster: true}, First, ""},
		"another cluster's store is meant":   {Situation{File: file("a"), Stored: identity("b"), NewCluster: true}, Known, ""},
		"the directory was lost":             {Situation{Stored: identity("a")}, Known, ""}, // Check refuses its new keys
		"the flag on a first start":          {Situation{Empty: true, NewCluster: true}, First, ""},
		"a directory with a store of before": {Situation{File: file("a")}, Unmarked, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Find(tc.s)
			if tc.err == "" && (err != nil || got != tc.want) {
				t.Errorf("Find() = %v, %v, want %v", got, err, tc.want)
			}
			if tc.err != "" && (!errors.Is(err, ErrDatastore) || !strings.Contains(err.Error(), tc.err) || !strings.Contains(err.Error(), FlagNewCluster)) {
				t.Errorf("Find() = %v, want ErrDatastore, %q and %s", err, tc.err, FlagNewCluster)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	keys := func(authority string, encryption ...string) Keys {
		return Keys{Authority: authority, Files: map[string][]string{"encryption.yaml": encryption}}
	}
	for name, tc := range map[string]struct {
		have    Keys
		profile string
		accept  bool
		err     error
		says    string
	}{
		"the same keys":             {keys("aa", "k1"), "cluster", false, nil, ""},
		"a key more":                {keys("aa", "k2", "k1"), "cluster", false, nil, ""},
		"another key":               {keys("aa", "k2"), "cluster", false, ErrKeys, "/data/encryption.yaml does not contain the key k1"},
		"no key":                    {keys("aa"), "cluster", false, ErrKeys, "/data/encryption.yaml"},
		"another authority":         {keys("bb", "k1"), "cluster", false, ErrKeys, "/data/pki/ca.crt"},
		"accepted":                  {keys("bb", "k2"), "cluster", true, nil, ""},
		"another profile":           {keys("aa", "k1"), "kcp", false, ErrDatastore, `the profile "cluster"`},
		"another profile, accepted": {keys("aa", "k1"), "kcp", true, ErrDatastore, `the profile "cluster"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stored := identity("a")
			before := maps.Clone(stored.Keys)
			got, err := Check("/data", *stored, tc.profile, tc.have, tc.accept)
			if !errors.Is(err, tc.err) || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Check() = %v, want %v saying %q", err, tc.err, tc.says)
			}
			if err == nil && (got.ID != "a" || got.Authority != tc.have.Authority || !maps.EqualFunc(got.Keys, tc.have.Files, func(a, b []string) bool { return strings.Join(a, " ") == strings.Join(b, " ") })) {
				t.Errorf("Check() = %+v", got)
			}
			if !maps.EqualFunc(before, stored.Keys, func(a, b []string) bool { return strings.Join(a, " ") == strings.Join(b, " ") }) {
				t.Error("the stored identity is changed")
			}
		})
	}
}

func TestReadAndWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if f, err := Read(dir); f != nil || err != nil {
		t.Errorf("Read() of an empty directory = %v, %v", f, err)
	}
	want := File{Identity: *identity("a"), Datastore: "here"}
	for range 2 {
		if err := Write(dir, want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(dir)
	if err != nil || got.ID != "a" || got.Datastore != "here" || got.Keys["encryption.yaml"][0] != "k1" {
		t.Errorf("Read() = %+v, %v", got, err)
	}
	path := filepath.Join(dir, FileName)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info, err)
	}
	for name, text := range map[string]string{"cut short": `{"id": "a`, "empty": "", "without an id": "{}"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Read() of a file that is %s = %v, want an error with its path", name, err)
		}
	}
}

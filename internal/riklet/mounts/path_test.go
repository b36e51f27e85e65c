package mounts

import "testing"

func TestCheckPath(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]bool{"/var/lib/riklet": true, "/var/a,b": false, "/var/a:b": false, `/run/no\ne`: false} {
		if err := CheckPath(dir); (err == nil) != want {
			t.Errorf("CheckPath(%q) = %v", dir, err)
		}
	}
}

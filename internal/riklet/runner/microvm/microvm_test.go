package microvm

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// In a microVM too, one volume may be inside another, in any order of declaration.
func TestGuestMountsAreMadeFromTheOutsideIn(t *testing.T) {
	t.Parallel()
	in := rikv1alpha1.InstanceTemplate{Volumes: []rikv1alpha1.Volume{{Name: "v", EmptyDir: &rikv1alpha1.EmptyDirVolume{}}}}
	c := rikv1alpha1.Container{VolumeMounts: []rikv1alpha1.VolumeMount{{Name: "v", MountPath: "/etc/a/b"}, {Name: "v", MountPath: "/etc"}, {Name: "v", MountPath: "/etc/a"}}}
	mounts, err := guestMounts(in, c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mounts {
		got = append(got, m.Target)
	}
	if diff := cmp.Diff([]string{"/etc", "/etc/a", "/etc/a/b"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node may be started with --vmm=none while it still runs microVMs. Orders for these are
// rejected, and the riklet continues.
func TestHoldWithoutMicroVMs(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{true, false} {
		if err := (&machines{}).Hold(t.Context(), instance.Instance{UID: "x"}, []string{"web"}, held); !errors.Is(err, ErrNone) {
			t.Errorf("hold(%v) = %v, want %v", held, err, ErrNone)
		}
	}
}

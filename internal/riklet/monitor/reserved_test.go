package monitor

import (
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestParseReserved(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		given map[string]string
		wants []string // empty: no error
	}{
		"nothing":             {nil, nil},
		"all there is":        {map[string]string{"cpu": "500m", "memory": "1Gi", "disk": "10Gi"}, nil},
		"unknown":             {map[string]string{"foo": "1"}, []string{"--reserved foo=1", "cpu, memory or disk"}},
		"another's word":      {map[string]string{"cpu": "1", "ephemeral-storage": "1Gi"}, []string{"ephemeral-storage", "disk"}},
		"no quantity":         {map[string]string{"memory": "lots"}, []string{"--reserved memory=lots", "such as"}},
		"a negative quantity": {map[string]string{"cpu": "-1"}, []string{"--reserved cpu=-1", "such as"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := ParseReserved(tc.given)
			if tc.wants == nil {
				if err != nil || len(list) != len(tc.given) {
					t.Errorf("ParseReserved() = %v, %v", list, err)
				}
				return
			}
			if err == nil {
				t.Fatalf("ParseReserved() = %v, want an error", list)
			}
			for _, want := range tc.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("ParseReserved() = %q, want it to say %q", err, want)
				}
			}
		})
	}
}

func TestTooMuch(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory string) rikv1alpha1.ResourceList {
		return rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse(cpu), rikv1alpha1.ResourceMemory: resource.MustParse(memory)}
	}
	for name, tc := range map[string]struct {
		reserved rikv1alpha1.ResourceList
		want     []string
	}{
		"nothing":                {list("0", "0"), nil},
		"a part":                 {list("500m", "1Gi"), nil},
		"m forgotten":            {list("500", "1Gi"), []string{"cpu=500"}},
		"all of both, and above": {list("2", "9Gi"), []string{"cpu=2", "memory=9Gi"}},
	} {
		got := tooMuch(tc.reserved, list("2", "8Gi"))
		if len(got) != len(tc.want) {
			t.Errorf("%s: tooMuch() = %v, want %v", name, got, tc.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i].Error(), tc.want[i]) {
				t.Errorf("%s: tooMuch() = %v, want %v", name, got, tc.want)
			}
		}
	}
}

// TestCheckReserved tests the check of this machine, also for a state directory that does not exist.
func TestCheckReserved(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "there")
	much := rikv1alpha1.ResourceList{rikv1alpha1.ResourceCPU: resource.MustParse("100000"), rikv1alpha1.ResourceDisk: resource.MustParse("1")}
	if problems, err := CheckReserved(t.Context(), much, dir); err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), "cpu=100k") {
		t.Errorf("CheckReserved() = %v, %v, want one problem", problems, err)
	}
	if problems, err := CheckReserved(t.Context(), nil, dir); err != nil || problems != nil {
		t.Errorf("CheckReserved() of nothing = %v, %v", problems, err)
	}
}

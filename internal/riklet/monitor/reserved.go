package monitor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// reservable lists the resources that nodes have.
var reservable = []rikv1alpha1.ResourceName{rikv1alpha1.ResourceCPU, rikv1alpha1.ResourceMemory, rikv1alpha1.ResourceDisk}

// ParseReserved parses the flag --reserved. An unknown resource is an error, because it would
// reserve nothing.
func ParseReserved(texts map[string]string) (rikv1alpha1.ResourceList, error) {
	list := rikv1alpha1.ResourceList{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text := texts[name]
		if !slices.Contains(reservable, rikv1alpha1.ResourceName(name)) {
			return nil, fmt.Errorf("--reserved %s=%s: the resource %q does not exist: use cpu, memory or disk", name, text, name)
		}
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("--reserved %s=%s: %q is not a quantity such as 500m of cpu, 1Gi of memory or 10Gi of disk", name, text, text)
		}
		list[rikv1alpha1.ResourceName(name)] = q
	}
	return list, nil
}

// CheckReserved refuses reservations of all capacity, because no instance could ever run on this
// machine. It returns one problem for each resource, or an error if the capacity cannot be read. The
// state directory need not exist.
func CheckReserved(ctx context.Context, reserved rikv1alpha1.ResourceList, stateDir string) ([]error, error) {
	if len(reserved) == 0 {
		return nil, nil
	}
	capacity, err := Capacity(ctx, existing(stateDir))
	if err != nil {
		return nil, err
	}
	return tooMuch(reserved, capacity), nil
}

func tooMuch(reserved, capacity rikv1alpha1.ResourceList) []error {
	var problems []error
	for _, name := range reservable {
		has := capacity[name]
		if q := reserved[name]; q.Sign() > 0 && q.Cmp(has) >= 0 {
			problems = append(problems, fmt.Errorf("--reserved %s=%s leaves nothing of the %s of this machine: reserve less, such as 500m of cpu or 1Gi of memory",
				name, q.String(), has.String()))
		}
	}
	return problems
}

// existing returns the directory, or its nearest parent that exists.
func existing(dir string) string {
	for dir != "/" && dir != "." {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

package datastore

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Quota is the maximum size of an embedded etcd's database in bytes. It is also a flag
// (pflag.Value), in the notation of Kubernetes: 512Mi, 10Gi. Zero means the default.
type Quota int64

// minQuota is the smallest quota. An embedded etcd also stores its own data in it.
const minQuota = 64 << 20

var errQuota = errors.New("use a size of 64Mi or more, such as 10Gi")

// Set implements pflag.Value.
func (q *Quota) Set(text string) error {
	size, err := resource.ParseQuantity(text)
	if err != nil {
		return errors.Join(errQuota, err)
	}
	if size.Value() < minQuota {
		return errQuota
	}
	*q = Quota(size.Value())
	return nil
}

// String implements pflag.Value.
func (q *Quota) String() string {
	if *q == 0 {
		return ""
	}
	return resource.NewQuantity(int64(*q), resource.BinarySI).String()
}

// Type implements pflag.Value.
func (q *Quota) Type() string { return "bytes" }

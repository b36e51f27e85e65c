// Package size is a flag for amounts of storage.
package size

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bytes is a flag for an amount of storage in the notation of Kubernetes: 512Mi, 10Gi.
type Bytes int64

// minQuota is the smallest amount. An embedded etcd also stores its own data in it.
const minQuota = 64 << 20

var errBytes = errors.New("use a size of 64Mi or more, such as 10Gi")

// Set implements pflag.Value.
func (b *Bytes) Set(text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return errors.Join(errBytes, err)
	}
	if q.Value() < minQuota {
		return errBytes
	}
	*b = Bytes(q.Value())
	return nil
}

// String implements pflag.Value.
func (b *Bytes) String() string {
	if *b == 0 {
		return ""
	}
	return resource.NewQuantity(int64(*b), resource.BinarySI).String()
}

// Type implements pflag.Value.
func (b *Bytes) Type() string { return "bytes" }

// Package checksum adds a checksum to every stored object and checks it at every read. bbolt,
// in which etcd stores objects, has no checksums for values, so a bit that flips on a disk would
// change an object without an error.
//
// A checked value is Prefix, the CRC-32C (Castagnoli, RFC 3720 appendix B.4) of the key and the
// value as 4 bytes in big-endian order, and the value. The key is included so that a value under
// the key of another object is detected too. Values without the prefix were stored before rik
// had checksums. They are read, and get a checksum at their next write.
package checksum

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

// Prefix is the beginning of every value with a checksum.
const Prefix = "rik:crc32c:"

// headerBytes is the length of what is before the value.
const headerBytes = len(Prefix) + crc32.Size

// ErrDamaged is returned for a value that does not match its checksum.
var ErrDamaged = errors.New("the stored object is damaged")

var table = crc32.MakeTable(crc32.Castagnoli)

// Add returns a new slice with the checksum and the value.
func Add(key string, plain []byte) []byte {
	out := make([]byte, 0, headerBytes+len(plain))
	out = append(out, Prefix...)
	out = binary.BigEndian.AppendUint32(out, sum(key, plain))
	return append(out, plain...)
}

// Check returns the value without its checksum, as a part of stored. checked is false for a value
// that has none. The error satisfies [ErrDamaged].
func Check(key string, stored []byte) (plain []byte, checked bool, err error) {
	if !bytes.HasPrefix(stored, []byte(Prefix)) {
		if resembles(stored) {
			return nil, true, fmt.Errorf("%w: the beginning of %s is %q in place of %q", ErrDamaged, key, stored[:len(Prefix)], Prefix)
		}
		return stored, false, nil
	}
	if len(stored) < headerBytes {
		return nil, true, fmt.Errorf("%w: %s has %d bytes, which is too short", ErrDamaged, key, len(stored))
	}
	plain = stored[headerBytes:]
	if want, got := binary.BigEndian.Uint32(stored[len(Prefix):]), sum(key, plain); want != got {
		return nil, true, fmt.Errorf("%w: the checksum of %s is %08x, and its content has %08x. Run rik check on the data directory, and restore the newest backup that rik check accepts", ErrDamaged, key, want, got)
	}
	return plain, true, nil
}

// resembles reports whether a value begins with [Prefix] except for a few bits. No value without a
// checksum does: those begin with "k8s" or "{", or are a number.
func resembles(stored []byte) bool {
	const most = len(Prefix) // bits; unrelated texts differ in about three times as many
	if len(stored) < len(Prefix) {
		return false
	}
	different := 0
	for i := range len(Prefix) {
		different += bits.OnesCount8(stored[i] ^ Prefix[i])
	}
	return different <= most
}

func sum(key string, plain []byte) uint32 {
	return crc32.Update(crc32.Update(0, table, []byte(key)), table, plain)
}

// Options makes the stores of all types add and check checksums.
type Options struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o Options) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := o.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil || options.StorageConfig == nil {
		return options, err
	}
	config := *options.StorageConfig
	config.Transformer = Wrap(config.Transformer)
	options.StorageConfig = &config
	return options, nil
}

// Wrap returns a transformer that adds the checksum after inner has encrypted the value, and
// checks it before inner decrypts. A nil inner encrypts nothing.
func Wrap(inner value.Transformer) value.Transformer {
	if inner == nil {
		inner = identity.NewEncryptCheckTransformer() // as Kubernetes does
	}
	return transformer{inner}
}

type transformer struct{ inner value.Transformer }

// TransformToStorage implements value.Transformer.
func (t transformer) TransformToStorage(ctx context.Context, plain []byte, key value.Context) ([]byte, error) {
	stored, err := t.inner.TransformToStorage(ctx, plain, key)
	if err != nil {
		return nil, err
	}
	return Add(string(key.AuthenticatedData()), stored), nil
}

// TransformFromStorage implements value.Transformer. A value without a checksum is stale, so that
// the next update stores it again even if it changes nothing.
func (t transformer) TransformFromStorage(ctx context.Context, stored []byte, key value.Context) (plain []byte, stale bool, err error) {
	inside, checked, err := Check(string(key.AuthenticatedData()), stored)
	if err != nil {
		return nil, false, err
	}
	plain, stale, err = t.inner.TransformFromStorage(ctx, inside, key)
	return plain, stale || !checked, err
}

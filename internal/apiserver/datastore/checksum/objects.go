package checksum

import (
	"errors"
	"fmt"
	"strings"
)

// ErrObjects is returned for a datastore with stored objects that do not match their checksums.
var ErrObjects = errors.New("stored objects do not match their checksums")

// Next is what to do about damaged objects.
const Next = "restore the newest backup. Without a backup, rik repair removes exactly these objects and keeps copies of them"

// Objects is the result of checking what a datastore contains.
type Objects struct {
	// Checked and Unchecked count what has a checksum that matches, and what has none. Objects that
	// were stored before rik had checksums have none, and keys that are not API objects never do.
	Checked, Unchecked int
	// Damaged are the keys of the objects that do not match their checksums.
	Damaged []string
}

// Add checks the stored value of a key.
func (o *Objects) Add(key string, stored []byte) {
	_, checked, err := Check(key, stored)
	switch {
	case err != nil:
		o.Damaged = append(o.Damaged, key)
	case checked:
		o.Checked++
	default:
		o.Unchecked++
	}
}

// Err returns an error that names the damaged objects, at most ten of them. It satisfies
// [ErrObjects].
func (o *Objects) Err() error {
	if len(o.Damaged) == 0 {
		return nil
	}
	const most = 10
	names, more := o.Damaged, ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	return fmt.Errorf("%w: %s%s", ErrObjects, strings.Join(names, ", "), more)
}

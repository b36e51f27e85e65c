package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// Sizes and flags of bbolt's file format (internal/common of go.etcd.io/bbolt). Numbers are in the
// byte order of the machine.
const (
	pageHeaderBytes   = 16 // id, flags, count, overflow
	elementBytes      = 16 // of a leaf: flags, position, key size, value size; of a branch: position, key size, page
	bucketHeaderBytes = 16 // root page, sequence
	branchPage        = 0x01
	leafPage          = 0x02
	bucketElement     = 0x01
	// maxDepth is more than any tree of a file below [MaxBytes] has.
	maxDepth = 32
)

// checkLayout reads the pages of a file as bbolt writes them: the elements of a page and then their
// keys and values, without gaps. bbolt itself does not compare these numbers. With a lower count
// of elements, for example, it silently serves a database without the last keys of a page.
func checkLayout(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	l := &layout{file: file, size: info.Size(), seen: map[uint64]bool{}}
	root, err := l.meta()
	if err != nil {
		return err
	}
	if err := l.page(root, nil, nil, 0); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

type layout struct {
	file     io.ReaderAt
	size     int64
	pageSize int64
	seen     map[uint64]bool // pages that are in a tree
}

// meta returns the root page of the newer of the two meta pages. bolt.Open has accepted the file,
// so that at least one of them is valid. Each has, after the header of the page: magic, version,
// page size and flags with four bytes each, root page, sequence, list of free pages, number of
// pages, transaction and checksum with eight bytes each.
func (l *layout) meta() (root uint64, err error) {
	const magic, txAt, rootAt, pageSizeAt, length = 0xED0CDAED, 48, 16, 8, 64
	pageSize := int64(os.Getpagesize())
	var newest uint64
	found := false
	for i := range int64(2) {
		data := make([]byte, length)
		if _, err := l.file.ReadAt(data, i*pageSize+pageHeaderBytes); err != nil {
			return 0, fmt.Errorf("%w: reading its first pages: %w", ErrDamaged, err)
		}
		if binary.NativeEndian.Uint32(data) != magic || !metaChecksum(data) {
			continue
		}
		pageSize = int64(binary.NativeEndian.Uint32(data[pageSizeAt:]))
		if tx := binary.NativeEndian.Uint64(data[txAt:]); !found || tx > newest {
			found, newest, root = true, tx, binary.NativeEndian.Uint64(data[rootAt:])
		}
	}
	if !found || pageSize < 512 || pageSize > 1<<16 {
		return 0, fmt.Errorf("%w: none of its first two pages is valid", ErrDamaged)
	}
	l.pageSize = pageSize
	return root, nil
}

// metaChecksum compares the FNV-1a checksum of a meta page.
func metaChecksum(meta []byte) bool {
	const sumAt = 56
	hash := uint64(14695981039346656037)
	for _, b := range meta[:sumAt] {
		hash = (hash ^ uint64(b)) * 1099511628211
	}
	return binary.NativeEndian.Uint64(meta[sumAt:]) == hash
}

// page checks a page and the pages below it. Its keys are at least from, and below to; nil means
// no bound.
func (l *layout) page(id uint64, from, to []byte, depth int) error {
	if depth > maxDepth || l.seen[id] {
		return fmt.Errorf("page %d is in the tree twice", id)
	}
	l.seen[id] = true
	data, err := l.read(id)
	if err != nil {
		return err
	}
	return l.elements(fmt.Sprintf("page %d", id), data, from, to, depth)
}

// read returns the content of a page with the pages that continue it.
func (l *layout) read(id uint64) ([]byte, error) {
	if id >= uint64(l.size/l.pageSize) {
		return nil, fmt.Errorf("page %d is behind the end of the file", id)
	}
	header := make([]byte, pageHeaderBytes)
	if _, err := l.file.ReadAt(header, int64(id)*l.pageSize); err != nil {
		return nil, err
	}
	if own := binary.NativeEndian.Uint64(header); own != id {
		return nil, fmt.Errorf("page %d says that it is page %d", id, own)
	}
	length := (int64(binary.NativeEndian.Uint32(header[12:])) + 1) * l.pageSize
	if int64(id)*l.pageSize+length > l.size {
		return nil, fmt.Errorf("page %d ends behind the end of the file", id)
	}
	data := make([]byte, length)
	if _, err := l.file.ReadAt(data, int64(id)*l.pageSize); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}

// element is a key of a page with its value (leaf) or the page below it (branch).
type element struct {
	flags      uint32
	key, value []byte
	page       uint64
}

// elements checks the content of a page, and what is below it.
func (l *layout) elements(name string, data []byte, from, to []byte, depth int) error {
	flags := binary.NativeEndian.Uint16(data[8:])
	all, err := parse(data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for i, e := range all {
		if from != nil && bytes.Compare(e.key, from) < 0 || to != nil && bytes.Compare(e.key, to) >= 0 || i > 0 && bytes.Compare(all[i-1].key, e.key) >= 0 {
			return fmt.Errorf("%s: the keys are not in order", name)
		}
		if err := l.below(name, flags, all, i, to, depth); err != nil {
			return err
		}
	}
	return nil
}

// below checks what is below the element with the given index.
func (l *layout) below(name string, flags uint16, all []element, index int, to []byte, depth int) error {
	e := all[index]
	switch {
	case flags == branchPage:
		if index+1 < len(all) {
			to = all[index+1].key
		}
		return l.page(e.page, e.key, to, depth+1)
	case e.flags&^bucketElement != 0:
		return fmt.Errorf("%s: the key %x has unknown flags", name, e.key)
	case e.flags&bucketElement == 0:
		return nil
	case len(e.value) < bucketHeaderBytes:
		return fmt.Errorf("%s: the bucket %q is too short", name, e.key)
	}
	if root := binary.NativeEndian.Uint64(e.value); root != 0 {
		return l.page(root, nil, nil, depth+1)
	}
	inline := e.value[bucketHeaderBytes:]
	if len(inline) < pageHeaderBytes {
		return fmt.Errorf("%s: the bucket %q is too short", name, e.key)
	}
	return l.elements(fmt.Sprintf("the bucket %q", e.key), inline, nil, nil, depth+1)
}

// parse returns the elements of a page. The data of each begins where the data of the one before
// ends, and the first where the elements end.
func parse(data []byte) ([]element, error) {
	flags, count := binary.NativeEndian.Uint16(data[8:]), int(binary.NativeEndian.Uint16(data[10:]))
	if flags != branchPage && flags != leafPage {
		return nil, fmt.Errorf("unknown type %#x", flags)
	}
	if flags == branchPage && count == 0 {
		return nil, errors.New("a branch without pages")
	}
	next := pageHeaderBytes + count*elementBytes
	if next > len(data) {
		return nil, fmt.Errorf("%d elements do not fit", count)
	}
	all := make([]element, count)
	for i := range all {
		at := pageHeaderBytes + i*elementBytes
		words := [4]uint32{}
		for w := range words {
			words[w] = binary.NativeEndian.Uint32(data[at+4*w:])
		}
		e := element{}
		position, keyBytes, valueBytes := words[1], words[2], words[3]
		if flags == branchPage {
			position, keyBytes, valueBytes = words[0], words[1], 0
			e.page = binary.NativeEndian.Uint64(data[at+8:])
		} else {
			e.flags = words[0]
		}
		end := int64(next) + int64(keyBytes) + int64(valueBytes)
		if keyBytes == 0 || int64(at)+int64(position) != int64(next) || end > int64(len(data)) {
			return nil, fmt.Errorf("element %d is not where it should be", i)
		}
		e.key, e.value = data[next:next+int(keyBytes)], data[next+int(keyBytes):end]
		all[i], next = e, int(end)
	}
	return all, nil
}

// Package image keeps the images of a node: it resolves references, pulls what
// is missing, stacks layers into the root file systems of containers, and
// collects what nobody uses.
//
// The store, under Config.Root:
//
//	images/<hash>.json      one record for each reference that was pulled
//	layers/<chain id>/fs    one layer, unpacked, read-only by agreement
//	mounts/<id>/            upper, work and rootfs of one container
//	tmp/                    pulls under way; emptied by Open
//	lock                    held while a Store is open
//
// Pulling and unpacking happen in a child process (package unpack), one for each
// pull: it can be killed, and its memory goes with it. The store trusts nothing
// in an image; what it refuses, and with which error, docs in errors.go say.
package image

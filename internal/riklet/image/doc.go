// Package image manages the images of a node. It resolves references, pulls missing layers,
// stacks layers into the root file systems of containers, and removes unused images. It imports
// images from archives and exports them.
//
// The store, under Config.Root:
//
//	images/<hash>.json      one record for each reference that was pulled
//	archives.json           what LoadArchives has loaded
//	layers/<chain id>/fs    one layer, unpacked, read-only by agreement
//	mounts/<id>/            upper, work and rootfs of one container
//	tmp/                    pulls under way; emptied by Open
//	lock                    held while a Store is open
//
// A child process (package unpack) pulls and unpacks, one for each pull. It can be killed, and
// its memory is freed when it ends. The store does not trust the content of images. The comments
// in errors.go say what it refuses, and with which error.
package image

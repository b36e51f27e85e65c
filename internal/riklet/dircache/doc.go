// Package dircache caches items that are expensive to create and shared by all their users:
// block images, unpacked archives. An item has a key and is a directory. It is created once, and
// stays as long as a user has pinned it.
//
// The files of the cache, under its root:
//
//	items/<key>/        a complete item; its change time is its last use
//	pins/<user>/<key>   an empty file: the user has pinned the item
//	notes/<hash>.json   data that a caller stores, under a name of any form
//	tmp/                incomplete items; emptied by Open
//	lock                held while a Cache is open
//
// An item appears by a rename, after its content has been synced, so every item is complete.
// Pins are files, so that a new process finds them.
package dircache

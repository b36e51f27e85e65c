// Package dircache keeps things that are costly to make and shared by all that use
// them: block images, unpacked archives. A thing has a key, is a directory, is
// made once, and stays as long as somebody has it pinned.
//
// The shelf, under its root:
//
//	items/<key>/        a finished thing; its time of change is its last use
//	pins/<user>/<key>   an empty file: the user has the thing
//	notes/<hash>.json   what a caller wants to remember, by a name of any form
//	tmp/                things under way; emptied by Open
//	lock                held while a Shelf is open
//
// A thing appears by a rename, after its content has reached the disk: what is
// there is whole. Pins are files too, so that a new process knows them.
package dircache

// Package backup is the format of rik's backups.
//
// A backup holds every key and value of a cluster's datastore at one revision, and the files of
// the data directory that a new server needs: the certificate authority, the keys of service
// accounts and of encryption, and the cluster's identity. It is logical, so it can be restored into
// every kind of datastore.
//
// The file is a tar archive, compressed with zstd, and encrypted with age unless the user chooses
// otherwise. Its entries are, in this order: the header ([HeaderName]), the files, parts with
// objects, and the manifest ([ManifestName]). The manifest is last, since it has the number of
// objects and the SHA-256 of all other entries. A file that was cut has no manifest.
//
// [Writer] writes a backup and [Read] reads one. Both work on a stream: they hold one part in
// memory. [Read] without a [Visitor] only verifies. A caller that writes something somewhere
// verifies the whole file first. Package recovery of the API server does that.
package backup

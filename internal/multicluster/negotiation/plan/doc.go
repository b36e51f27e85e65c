// Package plan decides what a kcp serves of a type that clusters offer. It is
// pure: from the imports of a resource, what was negotiated, the CRD and what is
// known of the stored objects, [Decide] says what to write.
//
// The rules:
//
//   - Until a version is published, what is negotiated is a function of its imports
//     alone: the meet of all that have one. Where they have none, imports are
//     admitted by the age of their Cluster, then by name. In which order they came
//     does not count.
//   - After that the schema stands. An import is checked against it, and narrows it
//     only with the strategy UpdatePublished and if every stored object stays valid
//     and whole. It widens when a cluster has left, or when every import says
//     UpdatePublished.
//   - A CRD that somebody made by hand, and a type that the kcp serves itself, are
//     enforced: imports are only checked.
//   - A version is taken away only when no objects are stored in it.
//
// What a decision has to know of stored objects it asks for: a [Plan] with
// questions must not be carried out. Answer them and decide again.
package plan

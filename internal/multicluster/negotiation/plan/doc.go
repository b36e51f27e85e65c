// Package plan decides what a kcp serves of a type that clusters offer. It is pure. From the
// imports of a resource, the negotiated resources, the CRD and facts about the stored objects,
// [Decide] returns what to write.
//
// The rules:
//
//   - Before a version is published, the negotiated schema depends only on its imports: it is the
//     meet of all of them. If they have none, imports are admitted by the age of their Cluster,
//     then by name. The order of their creation does not matter.
//   - After that, the schema is stable. An import is checked against it. An import narrows it
//     only with the strategy UpdatePublished, and only if every stored object stays valid and
//     keeps all its fields. The schema is widened when a cluster has left, or when every import
//     has the strategy UpdatePublished.
//   - A manual CRD, and a type that the kcp itself serves, are enforced: imports are only
//     checked.
//   - A version is removed only when no objects are stored in it.
//
// A decision asks questions about stored objects. A [Plan] with questions must not be executed.
// The caller must answer them and decide again.
package plan

// Package syncer copies objects from a kcp (upstream) to one physical cluster (downstream), and
// their status back. It gets two client configurations, and works the same wherever it runs.
//
// Pure functions decide. translate makes the object for downstream. decide returns the next step
// for one object. reportedStatus returns the status for upstream. breaker pauses deletions when
// there are too many. agree selects the types that both sides serve. The rest of the package is
// informers, one queue, and the requests.
//
// The package guarantees:
//
//   - It writes only objects that it made: in a namespace with its own locator, and with the UID
//     of the upstream object in an annotation. It reports any other object as a problem.
//   - It deletes an object only if the upstream server itself, not a cache, does not want it, and
//     only with a UID precondition. It does not delete objects because a type was removed. It
//     deletes claims to data only if they allow it. It does not delete many objects at once
//     without a go-ahead.
//   - A copied upstream object exists, because of a finalizer, until its downstream counterpart
//     is known to be gone. A syncer may be killed at any point.
//
// Reads: upstream the Cluster, the kube-system namespace, and the CRDs of the copied types, to
// see whether one is being removed. Upstream also objects whose labels name the cluster or that
// have its finalizer. Downstream the same types, and namespaces by name.
//
// Writes: upstream the status of the Cluster, and the status, the own finalizer, annotations and
// events of objects. Downstream namespaces (only creation) and objects.
package syncer

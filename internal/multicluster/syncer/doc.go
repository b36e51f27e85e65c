// Package syncer carries objects from a kcp (upstream) to one physical cluster
// (downstream), and their status back. It takes two client configurations and does
// not know where it runs.
//
// Pure functions decide: translate makes the object for downstream, decide says
// the next step for one object, reportedStatus what upstream is told, breaker when
// deletions are too many, agree which types both sides serve. Around them lies a
// shell of informers, one queue and the requests.
//
// What it promises:
//
//   - It writes only objects that it made: in a namespace that bears our locator, with
//     the counterpart's UID on them. Everything else is a problem that is reported.
//   - It deletes only what upstream, asked itself and not a cache, does not want, with
//     a UID precondition; never because a type ended, never a claim to data that does
//     not say so, never many at once without a go-ahead.
//   - An object upstream that was carried stays, by a finalizer, until its counterpart
//     is seen to be gone. A syncer may be killed at any point.
//
// Reads: upstream the Cluster, the kube-system namespace, the CRDs of the types that
// are carried (whether one is ending), and objects whose labels name the cluster or
// that bear its finalizer. Downstream the same types, and namespaces by name.
//
// Writes: upstream the Cluster's status, and of objects the status, its own finalizer,
// annotations and events. Downstream namespaces (only created) and objects.
package syncer

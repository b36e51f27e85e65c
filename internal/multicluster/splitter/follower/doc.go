// Package follower sends objects to the clusters where they are needed. A follower is a ConfigMap,
// Secret, ServiceAccount, claim, Service or Ingress that goes where the leaves which need it are.
//
// A follower has the targets of all leaves that need it. It loses a target when the last of these
// leaves has left that cluster, and not while such leaves may exist that were not read. A Service
// goes where its pods are, an Ingress goes where its Services are, and the Secrets of a
// ServiceAccount or an Ingress go where that is. [splitter.Follow] writes the targets. This
// package decides which clusters they are.
//
// The package knows nothing of roots. [Leaves] answers about their leaves. [Config].Changed reports
// followers that have changed, so that the roots which depend on them are processed.
//
// Reads: the metadata of followers, and their content as far as it refers to other objects.
// Writes: the targets and two annotations of followers.
package follower

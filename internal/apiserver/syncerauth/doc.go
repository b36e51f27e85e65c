// Package syncerauth decides who may send objects to which cluster, and holds the
// syncers, which carry them there, to what they are for.
//
// [Plugin] is admission: whoever sets, changes or removes a target of an object needs
// the verb deploy on that cluster, for otherwise a label would borrow the syncer's
// power. Of what a syncer writes it lets through the status, and of the metadata what
// bears the name of the syncer's own cluster; of events those that are about what is
// sent there.
//
// [Authorizer] is the one authority over the users that are called
// system:rik:syncer:CLUSTER. RBAC cannot tell objects by their labels; this lets a
// syncer list and watch only with a selector that demands its cluster, and get and
// patch only what is sent there. The credentials of a syncer are for one Cluster, by name
// and UID, and end with it, which [Clusters] tells. [Authorizer.Wrap] keeps that true for
// an object that is made between the look at it and the read, and for open watches.
package syncerauth

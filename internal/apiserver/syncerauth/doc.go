// Package syncerauth decides who may send objects to which cluster. It also limits the syncers,
// which copy the objects there, to their task.
//
// [Plugin] is an admission plugin. A user who sets, changes or removes a target of an object
// needs the verb deploy on that cluster. Otherwise users could use the syncer's permissions by
// setting a label. A syncer may write the status of objects that are sent to its cluster, and
// events about them. It may also write those parts of the metadata that contain the name of its
// own cluster.
//
// [Authorizer] alone decides for the users called system:rik:syncer:CLUSTER. RBAC cannot
// distinguish objects by their labels. The authorizer allows a syncer to list and watch only
// with a selector that requires its cluster, and to get and patch only objects that are sent to
// it. The credentials of a syncer are for one Cluster, by name and UID, and are valid only
// while it exists, which [Clusters] checks. [Authorizer.Wrap] enforces the same for an object
// that is created between the check and the read, and for open watches.
package syncerauth

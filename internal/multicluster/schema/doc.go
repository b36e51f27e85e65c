// Package schema computes the type on which several offers of a type agree, and the obstacles if
// they do not agree. It is pure.
//
// Meet is sound. Consider any document that is valid under the meet, after the meet's defaulting.
// The schema, list types, metadata and rules of each member accept it. Pruning with the member's
// schema drops nothing, and the member's defaulting changes nothing. Meet is commutative and
// idempotent. It is associative with two exceptions. In these, an agreement that meets another
// offer holds less than all offers would hold at once.
//
//   - Some meets cannot be written as a schema, such as an object with properties of its own and
//     keys of another schema. Such a part is left out, and no later offer restores it.
//   - If defaults differ, an agreement has one of them, or requires the property. Another offer
//     may lead to another default, or to none. To meet another offer, such an agreement must be
//     met together with its members, because it has a default that not all members have.
//
// An optional property that not all members can hold is dropped and reported. If a member
// requires the property, its object has no meet, and so on upward. If defaults differ, the meet
// has one that every member accepts, so that every member has what is stored. If no such default
// exists, documents must contain the property.
//
// A rule (x-kubernetes-validations) that uses a dropped property is evaluated in part. has() of
// the property is false, or the property has the default that the member of the rule sets. The
// rest of the rule becomes a rule of the meet. An object has no meet only if a rule cannot hold
// without the property.
//
// Compatible has a weaker condition: the documents of one schema, which already have its
// defaults, must be valid for the other.
package schema

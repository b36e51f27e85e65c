// Package schema finds what several offers of one type can agree on, and says
// where they cannot. It is pure: values in, values out.
//
// Meet is sound: for every document that is valid under the meet, after the meet's
// defaulting, each member's schema, list types, metadata and rules accept it, pruning
// with the member's schema drops nothing of it, and the member's defaulting changes
// nothing in it. It is commutative, associative and idempotent, with one exception to
// the second: what no one schema can say, such as an object with properties of its own
// beside keys of another schema, is left out, and no later offer brings it back.
//
// An optional property that not all can hold is dropped and reported; one that any
// member requires leaves its object without a meet, and so on upwards. Differing
// defaults are dropped. Where a member would then fill one in under a validation of
// the object as a whole, the property becomes required.
//
// Compatible asks for less: the documents of one schema, which already have its
// defaults, have to be good for the other.
package schema

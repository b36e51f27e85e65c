// Package schema finds what several offers of one type can agree on, and says
// where they cannot. It is pure: values in, values out.
//
// Meet is sound: for every document that is valid under the meet, after the meet's
// defaulting, each member's schema, list types, metadata and rules accept it, pruning
// with the member's schema drops nothing of it, and the member's defaulting changes
// nothing in it. It is commutative, associative and idempotent, with two exceptions to
// the second, in which an agreement that meets another offer holds less than all their
// offers at once would. What no one schema can say, such as an object with properties of
// its own beside keys of another schema, is left out, and no later offer brings it back.
// And where defaults differ, an agreement has one of them, or demands the property: another
// offer may leave another one, or none. Such an agreement has to meet another offer together
// with its members, for it has a default that not all of them have.
//
// An optional property that not all can hold is dropped and reported; one that any
// member requires leaves its object without a meet, and so on upwards. Where defaults differ,
// the meet has one that every member accepts, so that what is stored is what every member
// has. If there is none, documents have to give the property.
//
// A rule (x-kubernetes-validations) that speaks of a dropped property is evaluated in part:
// has() of the property is false, or the property has the default that the member of the
// rule gives it. What is left of the rule is the rule of the meet. Only a rule that cannot
// hold without the property leaves its object without a meet.
//
// Compatible asks for less: the documents of one schema, which already have its
// defaults, have to be good for the other.
package schema

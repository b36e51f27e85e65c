// Package negotiation is the controller that lets clusters agree on the types that
// a kcp serves. What to do is decided in package plan, which is pure; this package
// watches, looks at stored objects when a decision asks for it, and writes.
//
// One pass is over one resource with all its versions, because one CRD serves them.
//
// Reads: APIResourceImports, NegotiatedAPIResources, CustomResourceDefinitions,
// Clusters (their age), and the stored objects of a type before something that could
// harm them. Writes: NegotiatedAPIResources, the CRDs that they own, and the status
// of imports.
package negotiation

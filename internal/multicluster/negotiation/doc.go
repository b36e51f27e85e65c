// Package negotiation contains the controller by which clusters agree on the types that a kcp
// serves. The package plan, which is pure, makes the decisions. This package watches, reads
// stored objects when a decision asks for them, and writes.
//
// One pass handles one resource with all its versions, because one CRD serves them.
//
// Reads: APIResourceImports, NegotiatedAPIResources, CustomResourceDefinitions, Clusters (their
// age), and the stored objects of a type before a change that could harm them.
//
// Writes: NegotiatedAPIResources, the CRDs that they own, and the status of imports.
package negotiation

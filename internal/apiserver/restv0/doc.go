// Package restv0 serves the REST API that clients of the published RIK know:
// /api/v0, and the instances of /api/v1. It owns no objects. Every request
// becomes reads and writes of rik.dev's stores, by the user who sent it: the
// authorizer is asked for the real verb, resource and namespace, and admission
// runs before each write, as they would for a request to /apis/rik.dev.
//
// Identifiers are the UIDs of objects. What differs from the published API, and
// why, is the table in docs/reference/v0.md; the document that describes the
// routes is openapi.json, which is served too.
//
// [Routes] is what a server mounts.
package restv0

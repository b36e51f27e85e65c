// Package restv0 serves the REST API of the published RIK to its clients: /api/v0, and the
// instances of /api/v1. It owns no objects. Every request becomes reads and writes of rik.dev's
// stores by the user who sent it. The authorizer checks the real verb, resource and namespace,
// and admission runs before each write, as for a request to /apis/rik.dev.
//
// IDs are the UIDs of objects. docs/reference/v0.md lists the differences from the published
// API and their reasons. openapi.json describes the routes and is served too.
//
// A server mounts [Routes].
package restv0

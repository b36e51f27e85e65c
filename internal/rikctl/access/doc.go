// Package access gives commands access to the API server that rik's configuration names. It has
// typed clients, REST clients, the namespace and the server's types. Both rik's own commands and
// those of kubectl use it.
package access

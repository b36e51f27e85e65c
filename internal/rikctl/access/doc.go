// Package access gives commands access to the API server that rik's configuration names: typed
// clients, REST clients, the namespace and the server's types, for rik's own commands and for
// kubectl's.
package access

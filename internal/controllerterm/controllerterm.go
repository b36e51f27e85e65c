// Package controllerterm carries the term of the active controller with its writes to the datastore,
// which refuses those of a term that is over.
package controllerterm

import (
	"context"
	"net/http"
	"strconv"
)

// Header carries the term in the controller's requests to the API server. It counts only
// for rik:controller.
const Header = "Rik-Term"

// CauseOver is the type of a cause in the details of an API error. The error refuses a write whose
// term is over. The message of the cause is the term that has begun, in decimal.
const CauseOver = "TermOver"

type key struct{}

// With is a context whose writes are of a term. 0 is no term.
func With(ctx context.Context, number int64) context.Context {
	if number <= 0 {
		return ctx
	}
	return context.WithValue(ctx, key{}, number)
}

// From is the term of a context's writes; 0 if they are of none.
func From(ctx context.Context) int64 {
	number, _ := ctx.Value(key{}).(int64)
	return number
}

// Set puts a term into the header of a request.
func Set(h http.Header, number int64) { h.Set(Header, strconv.FormatInt(number, 10)) }

// Of is the term in the header of a request; 0 if there is none or it is malformed.
func Of(h http.Header) int64 {
	number, err := strconv.ParseInt(h.Get(Header), 10, 64)
	if err != nil || number < 0 {
		return 0
	}
	return number
}

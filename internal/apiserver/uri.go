package apiserver

import (
	"fmt"
	"net/http"
)

// maxURI bounds a request's URI in bytes. The URI is copied several times before
// authentication. Selectors of a few thousand names still fit.
const maxURI = 64 << 10

// withURILimit answers 414 to requests with a longer URI.
func withURILimit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if size := max(len(r.RequestURI), len(r.URL.Path)+len(r.URL.RawQuery)); size > maxURI {
			http.Error(w, fmt.Sprintf("the URI has %d bytes, and the limit is %d", size, maxURI), http.StatusRequestURITooLong)
			return
		}
		next.ServeHTTP(w, r)
	})
}

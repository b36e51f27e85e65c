package crdpuller

import "net/http"

// maxAnswerBytes is ten times the size of the OpenAPI document of all of Kubernetes.
const maxAnswerBytes = 64 << 20

// maxRedirects is one more than API servers use.
const maxRedirects = 2

// stay follows only redirects to the same server. Credentials are only for that server, and the
// transport would add them to any redirect. The server itself redirects requests for a changed
// OpenAPI document to the new one.
func stay(r *http.Request, before []*http.Request) error {
	first := before[0].URL
	if r.URL.Scheme != first.Scheme || r.URL.Host != first.Host || len(before) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

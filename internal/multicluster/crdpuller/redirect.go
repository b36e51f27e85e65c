package crdpuller

import "net/http"

// maxAnswerBytes is ten times the OpenAPI document of all of Kubernetes.
const maxAnswerBytes = 64 << 20

// maxRedirects is one more than any API server makes.
const maxRedirects = 2

// stay follows no redirect to elsewhere: credentials are for the server that was named,
// and the transport would add them wherever a redirect leads. The server itself sends
// who asks for an OpenAPI document that has changed to the new one.
func stay(r *http.Request, before []*http.Request) error {
	first := before[0].URL
	if r.URL.Scheme != first.Scheme || r.URL.Host != first.Host || len(before) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

package restv0

import "net/http"

// MaxReplicas is for tests.
const MaxReplicas = maxReplicas

// MaxBody is for tests.
const MaxBody = maxBody

// Served returns the methods and paths that are served.
func Served() []string {
	out := []string{http.MethodGet + " " + instancesOf + "/{workloadid}"}
	for _, e := range endpoints() {
		out = append(out, e.method+" "+e.path)
	}
	return out
}

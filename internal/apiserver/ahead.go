package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// revisions caches the revision of the datastore.
type revisions struct {
	client *clientv3.Client
	// seen is a revision that the datastore has reached.
	seen atomic.Int64
}

// current returns a revision of the datastore. It reads the datastore unless the wanted
// revision is known to be reached.
func (v *revisions) current(ctx context.Context, wanted int64) (int64, error) {
	if seen := v.seen.Load(); seen >= wanted {
		return seen, nil
	}
	answer, err := v.client.Get(ctx, "/rik.dev/cluster")
	if err != nil {
		return 0, fmt.Errorf("reading the revision of the datastore: %w", err)
	}
	for now := answer.Header.Revision; ; {
		seen := v.seen.Load()
		if seen >= now || v.seen.CompareAndSwap(seen, now) {
			return now, nil
		}
	}
}

// retrySeconds is the delay that a client is asked to wait, the same as for a list.
const retrySeconds = 1

// refuseAhead refuses a watch that would start after the latest revision of the datastore. A
// client requests that if it saw a later state of a datastore that was restored since.
// Kubernetes' server lets such a watch wait silently until the revision is reached, although it
// refuses a list.
func refuseAhead(inner http.Handler, v *revisions) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := genericapirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Verb != "watch" {
			inner.ServeHTTP(w, r)
			return
		}
		wanted, err := strconv.ParseInt(r.URL.Query().Get("resourceVersion"), 10, 64)
		if err != nil || wanted <= 0 {
			inner.ServeHTTP(w, r)
			return
		}
		// If the datastore does not answer, the watch itself reports the error.
		if now, err := v.current(r.Context(), wanted); err == nil && wanted > now {
			responsewriters.ErrorNegotiated(storage.NewTooLargeResourceVersionError(uint64(wanted), uint64(now), retrySeconds),
				legacyscheme.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

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

// revisions knows how far the datastore has come.
type revisions struct {
	client *clientv3.Client
	// seen is a revision that the datastore has had.
	seen atomic.Int64
}

// current asks the datastore unless it is known to have had the revision.
func (v *revisions) current(ctx context.Context, wanted int64) (int64, error) {
	if seen := v.seen.Load(); seen >= wanted {
		return seen, nil
	}
	answer, err := v.client.Get(ctx, "/rik.dev/cluster")
	if err != nil {
		return 0, fmt.Errorf("asking the datastore for its revision: %w", err)
	}
	for now := answer.Header.Revision; ; {
		seen := v.seen.Load()
		if seen >= now || v.seen.CompareAndSwap(seen, now) {
			return now, nil
		}
	}
}

// retrySeconds is what a client is told to wait, as a list tells it.
const retrySeconds = 1

// refuseAhead ends a watch that is to begin after all that the datastore has, as it is asked
// for by a client that saw a later state of a datastore which was restored since. Kubernetes'
// server lets it wait until the revision comes, without a word; a list is refused.
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
		// Without an answer nobody knows better; the watch itself says what is wrong.
		if now, err := v.current(r.Context(), wanted); err == nil && wanted > now {
			responsewriters.ErrorNegotiated(storage.NewTooLargeResourceVersionError(uint64(wanted), uint64(now), retrySeconds), //nolint:gosec // positive
				legacyscheme.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

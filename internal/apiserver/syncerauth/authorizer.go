package syncerauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/metadata"
)

// notSent is the reason that a syncer is given.
const notSent = "syncers see and touch only what is sent to their own cluster"

// Authorizer decides on everything that a syncer asks, and has no opinion on other
// users. It comes before RBAC, which could only add to what a syncer may do.
type Authorizer struct {
	// Objects reads what the requests are about, at its newest, as somebody who may.
	Objects metadata.Interface
	// Clusters knows for which Clusters there can be syncers.
	Clusters *Clusters
}

// noCluster is the reason that a syncer is given whose credentials have ended.
const noCluster = "these credentials are for a Cluster that is no more, or for none: the UID in them is not that of a Cluster of that name"

// Authorize implements authorizer.Authorizer. A request for an object that does not
// exist is allowed: the answer is that it does not, and a syncer must be able to
// learn so.
func (z Authorizer) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	cluster, ok := syncerOf(a.GetUser())
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	switch current, err := z.Clusters.has(ctx, cluster, types.UID(a.GetUser().GetUID())); {
	case err != nil:
		return authorizer.DecisionDeny, "", err
	case !current:
		return authorizer.DecisionDeny, noCluster, nil
	}
	switch authorize(cluster, a) {
	case allowed:
		return authorizer.DecisionAllow, "what every syncer needs", nil
	case dependent:
		object, err := z.read(ctx, a)
		switch {
		case apierrors.IsNotFound(err):
			return authorizer.DecisionAllow, "there is no such object", nil
		case err != nil:
			return authorizer.DecisionDeny, "", fmt.Errorf("reading what a syncer asks for: %w", err)
		case concerns(object, cluster):
			return authorizer.DecisionAllow, "sent to the syncer's cluster", nil
		}
	case refused:
	}
	return authorizer.DecisionDeny, notSent, nil
}

func (z Authorizer) read(ctx context.Context, a authorizer.Attributes) (*metav1.PartialObjectMetadata, error) {
	resource := schema.GroupVersionResource{Group: a.GetAPIGroup(), Version: a.GetAPIVersion(), Resource: a.GetResource()}
	namespace := a.GetNamespace()
	if a.GetAPIGroup() == "" && a.GetResource() == "namespaces" {
		namespace = "" // a request for a namespace counts as one in it
	}
	return z.Objects.Resource(resource).Namespace(namespace).Get(ctx, a.GetName(), metav1.GetOptions{})
}

// Wrap returns a handler that answers a syncer's read of an object that does not
// exist, or that is not sent to its cluster any more, by itself. Otherwise one that
// was made after the authorizer had looked would be read whatever its labels. It
// belongs behind authorization. Patches are looked at again by [Plugin]. What a syncer
// watches ends with its Cluster.
func (z Authorizer) Wrap(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, err := filters.GetAuthorizerAttributes(r.Context())
		if err != nil {
			next.ServeHTTP(w, r) // not a request of the API
			return
		}
		cluster, ok := syncerOf(a.GetUser())
		switch {
		case ok && a.GetVerb() == "watch":
			uid := types.UID(a.GetUser().GetUID())
			ctx, release := z.Clusters.during(r.Context(), uid)
			defer release()
			r = r.WithContext(ctx)
			err = z.watchable(ctx, cluster, uid, a)
		case ok && a.GetVerb() == "get" && authorize(cluster, a) == dependent:
			err = z.readable(r.Context(), cluster, a)
		}
		if err != nil {
			gv := schema.GroupVersion{Group: a.GetAPIGroup(), Version: a.GetAPIVersion()}
			responsewriters.ErrorNegotiated(err, serializer, gv, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// watchable looks again, now that the end of the Cluster would end the watch.
func (z Authorizer) watchable(ctx context.Context, cluster string, uid types.UID, a authorizer.Attributes) error {
	current, err := z.Clusters.has(ctx, cluster, uid)
	if err == nil && !current {
		err = forbidden(a, noCluster)
	}
	return err
}

func forbidden(a authorizer.Attributes, why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Group: a.GetAPIGroup(), Resource: a.GetResource()}, a.GetName(), errors.New(why))
}

func (z Authorizer) readable(ctx context.Context, cluster string, a authorizer.Attributes) error {
	object, err := z.read(ctx, a)
	if err != nil {
		return err
	}
	if !concerns(object, cluster) {
		return forbidden(a, notSent)
	}
	return nil
}

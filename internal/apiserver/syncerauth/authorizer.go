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

// notSent is the reason of a refusal for a syncer.
const notSent = "syncers may read and write only objects that are sent to their own cluster"

// Authorizer decides on every request of a syncer, and has no opinion on other users. It is
// called before RBAC, which could only add permissions.
type Authorizer struct {
	// Objects reads the current objects of requests, with the permissions to do so.
	Objects metadata.Interface
	// Clusters decides for which Clusters there can be syncers.
	Clusters *Clusters
}

// noCluster is the reason for a syncer whose credentials are no longer valid.
const noCluster = "these credentials do not belong to an existing Cluster: no Cluster of that name has the UID in them"

// Authorize implements authorizer.Authorizer. It allows a request for an object that does not
// exist. The response is then that it does not exist, which a syncer must be able to read.
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
		return authorizer.DecisionAllow, "every syncer needs this", nil
	case dependent:
		object, err := z.read(ctx, a)
		switch {
		case apierrors.IsNotFound(err):
			return authorizer.DecisionAllow, "the object does not exist", nil
		case err != nil:
			return authorizer.DecisionDeny, "", fmt.Errorf("reading the object that a syncer requests: %w", err)
		case concerns(object, cluster):
			return authorizer.DecisionAllow, "the object is sent to the syncer's cluster", nil
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

// Wrap returns a handler that itself answers a syncer's read of an object that does not exist,
// or that is no longer sent to the syncer's cluster. Otherwise a syncer could read an object of
// any labels that is created after the authorizer's check. The handler must run after
// authorization. [Plugin] checks patches again. A syncer's watches end with its Cluster.
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

// watchable checks the Cluster again, now that its deletion would end the watch.
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

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
)

// sized makes the stores of types answer with status 413 when the datastore refuses an object
// because of its size. Without it, Kubernetes returns the error of the call to etcd.
type sized struct{ generic.RESTOptionsGetter }

// GetRESTOptions implements generic.RESTOptionsGetter.
func (s sized) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil || options.Decorator == nil {
		return options, err
	}
	inner := options.Decorator
	options.Decorator = func(config *storagebackend.ConfigForResource, prefix string, keyOf func(runtime.Object) (string, error), newObject, newList func() runtime.Object,
		attributes storage.AttrFunc, triggers storage.IndexerFuncs, indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		made, destroy, err := inner(config, prefix, keyOf, newObject, newList, attributes, triggers, indexers)
		if err != nil {
			return made, destroy, err
		}
		return sizedStorage{made}, destroy, nil
	}
	return options, nil
}

type sizedStorage struct{ storage.Interface }

// Create implements storage.Interface.
func (s sizedStorage) Create(ctx context.Context, key string, object, out runtime.Object, ttl uint64) error {
	return tooLarge(s.Interface.Create(ctx, key, object, out, ttl))
}

// GuaranteedUpdate implements storage.Interface.
func (s sizedStorage) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, update storage.UpdateFunc, cached runtime.Object,
) error {
	return tooLarge(s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, update, cached))
}

// largeError is an API error that also has the gRPC status of the call. The handlers recognize
// by that status that they may retry without managedFields.
type largeError struct {
	*apierrors.StatusError
	status *status.Status
}

// GRPCStatus returns the status of the call to the datastore.
func (e largeError) GRPCStatus() *status.Status { return e.status }

// Unwrap returns the API error.
func (e largeError) Unwrap() error { return e.StatusError }

// asHandlersKnow is the message by which Kubernetes' handlers recognize such an error.
const asHandlersKnow = "trying to send message larger than max"

// tooLarge translates the error for an object that is too large for the datastore. The error
// comes from etcd itself, or from the client before it sends. Other errors are returned
// unchanged.
func tooLarge(err error) error {
	if err == nil {
		return nil
	}
	var coded interface{ Code() codes.Code }
	var called interface{ GRPCStatus() *status.Status }
	etcds := errors.As(err, &coded) && coded.Code() == codes.InvalidArgument && strings.Contains(err.Error(), "request is too large")
	clients := errors.As(err, &called) && called.GRPCStatus().Code() == codes.ResourceExhausted && strings.Contains(called.GRPCStatus().Message(), "larger than max")
	if !etcds && !clients {
		return err
	}
	return largeError{
		StatusError: &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge,
			Message: fmt.Sprintf("the object is too large to be stored: the limit is %d KiB, including the fields that the server adds", storedKiB),
		}},
		status: status.New(codes.ResourceExhausted, asHandlersKnow),
	}
}

// storedKiB is the datastore's limit for a request, in KiB: etcd's default.
const storedKiB = 1536

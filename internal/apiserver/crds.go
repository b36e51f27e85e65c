package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"rik.dev/rik/config"
)

const (
	crdsHook = "rik/bootstrap-crds"
	// crdsManager is the field manager of the CRDs that the server creates.
	crdsManager = "rik"
	crdsPoll    = 20 * time.Millisecond
)

// ensureCRDs is the post-start hook that creates the CRDs of a kcp's own types, in the form of
// this version. Readiness waits until they are served, even if a slow datastore takes long,
// because a hook that fails ends the whole process.
func ensureCRDs(hook genericapiserver.PostStartHookContext) error {
	crds, err := config.CRDs()
	if err != nil {
		return fmt.Errorf("reading the CRDs: %w", err)
	}
	client, err := clientset.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("creating a client for the CRDs: %w", err)
	}
	group, ctx := errgroup.WithContext(hook)
	for _, crd := range crds {
		group.Go(func() error { return ensureCRD(ctx, client, crd) })
	}
	if err := group.Wait(); err != nil && hook.Err() == nil {
		return err
	}
	return nil
}

func ensureCRD(ctx context.Context, client clientset.Interface, crd *apiextensionsv1.CustomResourceDefinition) error {
	document, err := applicable(crd)
	if err != nil {
		return err
	}
	last := errors.New("the API server did not answer")
	err = wait.PollUntilContextCancel(ctx, crdsPoll, true, func(ctx context.Context) (bool, error) {
		before := last
		if last = applyCRD(ctx, client, crd.Name, document); last == nil {
			last = discovered(ctx, client.Discovery().RESTClient(), crd)
		}
		if last != nil && last.Error() != before.Error() {
			klog.FromContext(ctx).Info("a type of this server is not served yet", "crd", crd.Name, "err", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("installing the CRD %s: %w", crd.Name, last)
	}
	return nil
}

// applicable returns a CRD as a document for server-side apply. It has no status, which the
// server sets.
func applicable(crd *apiextensionsv1.CustomResourceDefinition) ([]byte, error) {
	return json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        map[string]any                               `json:"metadata"`
		Spec            apiextensionsv1.CustomResourceDefinitionSpec `json:"spec"`
	}{
		TypeMeta: metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		Metadata: map[string]any{"name": crd.Name, "annotations": crd.Annotations, "labels": crd.Labels},
		Spec:     crd.Spec,
	})
}

// applyCRD writes the CRD if it differs. It returns an error while the CRD is not established.
func applyCRD(ctx context.Context, client clientset.Interface, name string, document []byte) error {
	stored, err := client.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, name, types.ApplyPatchType, document,
		metav1.PatchOptions{FieldManager: crdsManager, Force: new(true)})
	if err != nil {
		return err
	}
	for _, condition := range stored.Status.Conditions {
		if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
			return nil
		}
	}
	return errors.New("it is not established")
}

// discovered returns an error until discovery lists the type, which happens a moment later.
// Until then the server may ask for a delay of five seconds, although it needs only
// milliseconds. The caller therefore makes the next attempt itself.
func discovered(ctx context.Context, client rest.Interface, crd *apiextensionsv1.CustomResourceDefinition) error {
	for _, version := range crd.Spec.Versions {
		groupVersion := crd.Spec.Group + "/" + version.Name
		list := &metav1.APIResourceList{}
		if err := client.Get().AbsPath("/apis", groupVersion).MaxRetries(0).Do(ctx).Into(list); err != nil {
			return err
		}
		if !lists(list, crd.Spec.Names.Plural) {
			return fmt.Errorf("%s does not list %s", groupVersion, crd.Spec.Names.Plural)
		}
	}
	return nil
}

func lists(list *metav1.APIResourceList, plural string) bool {
	for _, resource := range list.APIResources {
		if resource.Name == plural {
			return true
		}
	}
	return false
}

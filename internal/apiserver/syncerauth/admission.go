package syncerauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// PluginName is the name under which the plugin is registered.
const PluginName = "RikPlacement"

// Register registers the plugin.
func Register(plugins *admission.Plugins) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) {
		return &Plugin{Handler: admission.NewHandler(admission.Create, admission.Update)}, nil
	})
}

// Plugin checks every write of every type for a change of targets, and every write of a syncer.
// It is a validating plugin, so it sees the object after the changes of webhooks.
type Plugin struct {
	*admission.Handler

	authorizer authorizer.Authorizer
	// client and objects find and read the objects to which the events of syncers refer.
	client  kubernetes.Interface
	objects dynamic.Interface
}

var (
	_ admission.ValidationInterface          = &Plugin{}
	_ initializer.WantsAuthorizer            = &Plugin{}
	_ initializer.WantsExternalKubeClientSet = &Plugin{}
	_ initializer.WantsDynamicClient         = &Plugin{}
)

// SetAuthorizer implements initializer.WantsAuthorizer.
func (p *Plugin) SetAuthorizer(z authorizer.Authorizer) { p.authorizer = z }

// SetExternalKubeClientSet implements initializer.WantsExternalKubeClientSet.
func (p *Plugin) SetExternalKubeClientSet(client kubernetes.Interface) { p.client = client }

// SetDynamicClient implements initializer.WantsDynamicClient.
func (p *Plugin) SetDynamicClient(objects dynamic.Interface) { p.objects = objects }

// ValidateInitialization implements admission.InitializationValidator.
func (p *Plugin) ValidateInitialization() error {
	if p.authorizer == nil || p.client == nil || p.objects == nil {
		return errors.New("programmer error: the placement plugin needs an authorizer and clients")
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if cluster, ok := syncerOf(a.GetUserInfo()); ok {
		if err := p.checkSyncer(ctx, cluster, a); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	before, now, ok := both(a)
	if !ok {
		return nil
	}
	if err := malformed(before, now); err != nil {
		return admission.NewForbidden(a, err)
	}
	for _, cluster := range touched(before, now) {
		if err := p.mayDeploy(ctx, a, cluster); err != nil {
			return admission.NewForbidden(a, err)
		}
	}
	for _, text := range p.warnings(ctx, a, before, now) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// warnings returns reasons why an object may not arrive at the new targets of a write. It does
// not check the leaves of a split root, because the splitter has already checked their
// clusters.
func (p *Plugin) warnings(ctx context.Context, a admission.Attributes, before, now metav1.Object) []string {
	if now.GetLabels()[workloadv1alpha1.OwnedByLabel] != "" || a.GetSubresource() != "" {
		return nil
	}
	var texts []string
	was := workloadv1alpha1.Targets(before.GetLabels())
	for _, name := range workloadv1alpha1.Targets(now.GetLabels()) {
		if slices.Contains(was, name) {
			continue
		}
		// The server's cache is sufficient, because this is only a warning.
		found, err := p.objects.Resource(clusterResource).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		switch {
		case apierrors.IsNotFound(err):
			texts = append(texts, fmt.Sprintf("the Cluster %q does not exist: the object stays here until a Cluster of this name is registered", name))
		case err == nil:
			types, known, err := unstructured.NestedStringSlice(found.Object, "status", "syncedResources")
			if resource := a.GetResource().GroupResource().String(); known && err == nil && !slices.Contains(types, resource) {
				texts = append(texts, fmt.Sprintf("the Cluster %q does not accept %s at the moment: see its status.syncedResources and its conditions", name, resource))
			}
		}
	}
	return texts
}

// both returns an object before and after a write. ok is false if the object has no metadata,
// and therefore no labels.
func both(a admission.Attributes) (before, now metav1.Object, ok bool) {
	now, err := meta.Accessor(a.GetObject())
	if err != nil {
		return nil, nil, false
	}
	before = none
	if a.GetOldObject() != nil {
		if before, err = meta.Accessor(a.GetOldObject()); err != nil {
			return nil, nil, false
		}
	}
	return before, now, true
}

// mayDeploy checks whether the user has the verb deploy on a cluster. A syncer needs no
// permission to set its own finalizer on objects that are sent to its cluster. That is checked
// before.
func (p *Plugin) mayDeploy(ctx context.Context, a admission.Attributes, cluster string) error {
	if own, ok := syncerOf(a.GetUserInfo()); ok && own == cluster {
		return nil
	}
	decision, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: workloadv1alpha1.DeployVerb, ResourceRequest: true,
		APIGroup: workloadv1alpha1.GroupName, APIVersion: workloadv1alpha1.SchemeGroupVersion.Version,
		Resource: "clusters", Name: cluster,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	return errors.Join(fmt.Errorf("user %q may not send objects to the cluster %q or remove them from it: that needs the verb %q on clusters.%s %q",
		a.GetUserInfo().GetName(), cluster, workloadv1alpha1.DeployVerb, workloadv1alpha1.GroupName, cluster), err)
}

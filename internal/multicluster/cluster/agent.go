package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/cluster/pull"
	"rik.dev/rik/internal/multicluster/syncer"
)

// agent installs and removes the syncer that runs in a physical cluster (mode pull). Only its
// member uses it.
type agent struct {
	cluster     string
	owner       types.UID
	image       string
	flags       []string
	credentials func(ctx context.Context, cluster string, uid types.UID) ([]byte, error)
	downstream  *rest.Config
	client      client.Client
}

func (c *Controller) newAgent(cluster *workloadv1alpha1.Cluster, m *member) (*agent, error) {
	objects, err := client.New(m.downstream, client.Options{HTTPClient: m.http, Scheme: scheme, Mapper: mapper()})
	if err != nil {
		return nil, err
	}
	return &agent{
		cluster: cluster.Name, owner: cluster.UID, image: c.config.SyncerImage, credentials: c.config.Credentials,
		flags:      deleteFlags(c.config.Deletes),
		downstream: m.downstream, client: objects,
	}, nil
}

// deleteFlags returns the flags for values that differ from the defaults. With the defaults it
// returns no flags, so the agent is not replaced.
func deleteFlags(l syncer.DeleteLimit) []string {
	var flags []string
	if l.Count != 0 && l.Count != syncer.DefaultDeleteCount {
		flags = append(flags, fmt.Sprintf("--max-deletes=%d", l.Count))
	}
	if l.Fraction != 0 && l.Fraction != syncer.DefaultDeleteFraction {
		flags = append(flags, fmt.Sprintf("--max-delete-fraction=%v", l.Fraction))
	}
	if l.Window != 0 && l.Window != syncer.DefaultDeleteWindow {
		flags = append(flags, fmt.Sprintf("--delete-window=%s", l.Window))
	}
	return flags
}

// errForeign: a namespace with the name of the agent's namespace exists and was not made for it.
var errForeign = errors.New("it exists and was not made for this Cluster: remove it, or register the cluster under another name")

// install updates the agent for the types to copy. It is idempotent.
func (a *agent) install(ctx context.Context, carried []string) error {
	if a.credentials == nil {
		return errors.New("this cluster controller can make no credentials for an agent: use the mode push, or none")
	}
	if _, err := a.owned(ctx); err != nil {
		return err
	}
	options, err := a.options(ctx, carried)
	if err != nil {
		return err
	}
	objects, err := pull.Render(options)
	if err != nil {
		return err
	}
	return a.apply(ctx, objects)
}

func (a *agent) apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, o := range objects {
		err := a.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(o), client.FieldOwner(fieldManager), client.ForceOwnership)
		if err != nil {
			return fmt.Errorf("applying the %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// options determines what the cluster supports. It reuses the credentials of the agent, and
// creates new ones before these expire.
func (a *agent) options(ctx context.Context, carried []string) (pull.Options, error) {
	o := pull.Options{Cluster: a.cluster, ClusterUID: a.owner, Image: a.image, Flags: a.flags}
	for _, name := range carried {
		o.Carried = append(o.Carried, schema.ParseGroupResource(name))
	}
	var err error
	if o.Policies, err = a.serves(ctx, policy()); err != nil {
		return o, err
	}
	if o.Rik, err = a.serves(ctx, &rikv1alpha1.WorkloadList{}); err != nil {
		return o, err
	}
	if err := a.apply(ctx, pull.Home(a.owner)); err != nil {
		return o, err
	}
	present := &corev1.Secret{}
	err = a.client.Get(ctx, client.ObjectKey{Namespace: pull.Namespace(a.owner), Name: pull.Name}, present)
	if client.IgnoreNotFound(err) != nil {
		return o, fmt.Errorf("reading the agent's credentials: %w", err)
	}
	if o.Upstream = present.Data[pull.UpstreamKey]; needsRenewal(o.Upstream, time.Now()) {
		if o.Upstream, err = a.credentials(ctx, a.cluster, a.owner); err != nil {
			return o, fmt.Errorf("making credentials for the agent: %w", err)
		}
	}
	if o.Rik {
		if o.Downstream = present.Data[pull.DownstreamKey]; needsRenewal(o.Downstream, time.Now()) {
			o.Downstream, err = a.account(ctx)
		}
	}
	return o, err
}

// policy returns an empty list of ValidatingAdmissionPolicies.
func policy() client.ObjectList {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyList"})
	return list
}

// serves reports whether the cluster serves a type.
func (a *agent) serves(ctx context.Context, list client.ObjectList) (bool, error) {
	err := a.client.List(ctx, list, client.Limit(1))
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("reading the types of the cluster: %w", err)
	}
	return true, nil
}

// accountSeconds is the lifetime of a token for the agent, if the cluster allows it: 90 days.
const accountSeconds = 90 * 24 * 60 * 60

// account returns a kubeconfig for the agent's account. It is for clusters that give their
// workloads no credentials.
func (a *agent) account(ctx context.Context) ([]byte, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: pull.Namespace(a.owner), Name: pull.Name}}
	seconds := int64(accountSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	if err := a.client.SubResource("token").Create(ctx, account, request); err != nil {
		return nil, fmt.Errorf("asking for a token of the agent's account: %w", err)
	}
	return accountKubeconfig(a.downstream, request.Status.Token)
}

// owned reports whether the agent's namespace exists. If it was not made for this agent, that is
// an error.
func (a *agent) owned(ctx context.Context) (bool, error) {
	namespace := &corev1.Namespace{}
	err := a.client.Get(ctx, client.ObjectKey{Name: pull.Namespace(a.owner)}, namespace)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("looking for the agent: %w", err)
	case namespace.Labels[pull.ClusterUIDLabel] != string(a.owner):
		return false, fmt.Errorf("namespace %s: %w", namespace.Name, errForeign)
	}
	return true, nil
}

// remove deletes the agent from the cluster, if there is one. It returns when the agent cannot
// act any more. Its namespace may still exist at that time.
func (a *agent) remove(ctx context.Context) error {
	there, err := a.owned(ctx)
	if apierrors.IsForbidden(err) || err == nil && !there {
		return nil
	}
	if err != nil {
		return err
	}
	for _, o := range pull.Removal(a.owner) {
		err := a.client.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationForeground))
		if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
			return fmt.Errorf("removing the %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

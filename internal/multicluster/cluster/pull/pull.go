// Package pull renders the agent in a physical cluster. The agent consists of the syncer as a
// workload of that cluster, its account there, the permissions of that account, and the
// credentials with which it reaches the kcp.
//
// The package is pure: it renders objects and does not apply them. All objects have the labels of
// [Labels], so that they can be found again and removed.
package pull

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

const (
	// Name is the name of every namespaced object of an agent.
	Name = "rik-syncer"
	// PartLabel marks the objects of an agent.
	PartLabel = "app.kubernetes.io/name"
	// ClusterUIDLabel identifies the agent by the UID of the Cluster upstream.
	ClusterUIDLabel = "workloads.kcp.dev/cluster-uid"
	// Mount is the directory of the agent's credentials.
	Mount = "/etc/rik-syncer"
	// UpstreamKey is the kubeconfig file for the kcp in that directory, and its key in the
	// Secret.
	UpstreamKey = "upstream.kubeconfig"
	// DownstreamKey is the kubeconfig file for the cluster, if the agent cannot use a mounted
	// token.
	DownstreamKey = "downstream.kubeconfig"
	// credentialsAnnotation on the agent's pod template is the hash of its credentials. New
	// credentials therefore replace the agent.
	credentialsAnnotation = "workloads.kcp.dev/credentials"
)

// Options describe the agent of a cluster, and what that cluster supports.
type Options struct {
	// Cluster is the name of the Cluster upstream. ClusterUID is its UID.
	Cluster    string
	ClusterUID types.UID
	// Image is the image of the syncer.
	Image string
	// Upstream is the kubeconfig by which the agent reaches the kcp.
	Upstream []byte
	// Downstream is the kubeconfig by which the agent reaches its own cluster. It is needed only
	// if the cluster gives its workloads no credentials.
	Downstream []byte
	// Flags are additional flags of the syncer. The flags for its connections are always set.
	Flags []string
	// Carried are the types that are synced.
	Carried []schema.GroupResource
	// Policies is true if the cluster serves ValidatingAdmissionPolicies.
	Policies bool
	// Rik is true for a rik cluster, which runs Workloads instead of Deployments.
	Rik bool
}

// Namespace returns the namespace of a cluster's agent. Two kcps may each have an agent in one
// cluster.
func Namespace(clusterUID types.UID) string {
	sum := sha256.Sum256([]byte(clusterUID))
	return Name + "-" + hex.EncodeToString(sum[:5])
}

// ClusterScoped returns the name of the agent's cluster-scoped objects.
func ClusterScoped(clusterUID types.UID) string { return "workloads.kcp.dev:" + Namespace(clusterUID) }

// PolicyName returns the name of the agent's admission policy, which must be a DNS subdomain.
func PolicyName(clusterUID types.UID) string { return Namespace(clusterUID) + ".workloads.kcp.dev" }

// Labels returns the labels of every object of a cluster's agent.
func Labels(clusterUID types.UID) map[string]string {
	return map[string]string{PartLabel: Name, ClusterUIDLabel: string(clusterUID)}
}

// Account returns the user name of the agent downstream.
func Account(clusterUID types.UID) string {
	return "system:serviceaccount:" + Namespace(clusterUID) + ":" + Name
}

func (o *Options) validate() error {
	var problems []error
	if o.Cluster == "" || o.ClusterUID == "" {
		problems = append(problems, errors.New("programmer error: an agent needs its Cluster's name and UID"))
	}
	if o.Image == "" {
		problems = append(problems, errors.New("no image of the syncer is known: start the cluster controller with --syncer-image"))
	}
	if len(o.Upstream) == 0 {
		problems = append(problems, errors.New("programmer error: an agent needs credentials for the kcp"))
	}
	return errors.Join(problems...)
}

// Render returns the agent's objects in the order in which they must be applied.
func Render(o Options) ([]*unstructured.Unstructured, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("rendering the syncer's agent: %w", err)
	}
	objects := append(Home(o.ClusterUID), o.clusterRole(), o.clusterRoleBinding())
	if o.Policies {
		objects = append(objects, o.policy(), o.policyBinding())
	}
	objects = append(objects, o.secret())
	if o.Rik {
		objects = append(objects, o.lease()...)
		return append(objects, o.workload()), nil
	}
	return append(objects, o.deployment()), nil
}

// Home returns the agent's namespace with its account. They must be applied first if the cluster
// gives its workloads no credentials, because the caller then requests a token for the account.
func Home(clusterUID types.UID) []*unstructured.Unstructured {
	o := Options{ClusterUID: clusterUID}
	return []*unstructured.Unstructured{
		o.object("v1", "Namespace", "", Namespace(clusterUID), nil),
		o.object("v1", "ServiceAccount", Namespace(clusterUID), Name, nil),
	}
}

// lease returns the Lease by which a rik cluster fences, and the namespace of all such Leases.
// That namespace does not belong to an agent.
func (o *Options) lease() []*unstructured.Unstructured {
	home := &unstructured.Unstructured{}
	home.SetAPIVersion("v1")
	home.SetKind("Namespace")
	home.SetName(workloadv1alpha1.FenceNamespace)
	return []*unstructured.Unstructured{
		home,
		o.object("coordination.k8s.io/v1", "Lease", workloadv1alpha1.FenceNamespace, workloadv1alpha1.FenceLeaseName(string(o.ClusterUID)), nil),
	}
}

// object returns an object with the agent's labels. fields are all fields except the metadata.
func (o *Options) object(apiVersion, kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	labels := map[string]any{}
	for key, value := range Labels(o.ClusterUID) {
		labels[key] = value
	}
	metadata := map[string]any{"name": name, "labels": labels}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	content := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	for key, value := range fields {
		content[key] = value
	}
	return &unstructured.Unstructured{Object: content}
}

func (o *Options) secret() *unstructured.Unstructured {
	data := map[string][]byte{UpstreamKey: o.Upstream}
	if len(o.Downstream) > 0 {
		data[DownstreamKey] = o.Downstream
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.Secret{Data: data})
	if err != nil {
		panic("programmer error: a map of bytes cannot be converted: " + err.Error())
	}
	return o.object("v1", "Secret", Namespace(o.ClusterUID), Name,
		map[string]any{"type": string(corev1.SecretTypeOpaque), "data": content["data"]})
}

// credentialsHash changes with the credentials and does not reveal them.
func (o *Options) credentialsHash() string {
	sum := sha256.Sum256(slices.Concat(o.Upstream, []byte{0}, o.Downstream))
	return hex.EncodeToString(sum[:8])
}

// args returns the command line of the syncer. It contains no secret, because secrets are in
// files.
func (o *Options) args() []any {
	args := []any{"--cluster", o.Cluster, "--from-kubeconfig", Mount + "/" + UpstreamKey}
	if len(o.Downstream) > 0 {
		args = append(args, "--to-kubeconfig", Mount+"/"+DownstreamKey)
	}
	for _, flag := range o.Flags {
		args = append(args, flag)
	}
	return args
}

// locatorMark returns a part of the locator annotation of namespaces that were made for the
// cluster. See [workloadv1alpha1.Locator].
func (o *Options) locatorMark() string { return `"clusterUID":"` + string(o.ClusterUID) + `"` }

// hasLocator returns an expression for the policy: whether a namespace has a locator of this
// cluster.
func (o *Options) hasLocator(namespace string) string {
	annotation := "'" + workloadv1alpha1.LocatorAnnotation + "'"
	return fmt.Sprintf("has(%[1]s.metadata.annotations) && %[2]s in %[1]s.metadata.annotations && %[1]s.metadata.annotations[%[2]s].contains('%[3]s')",
		namespace, annotation, o.locatorMark())
}

// Removal returns the objects to delete when an agent is removed, in order: first its
// permissions, then the agent itself.
func Removal(clusterUID types.UID) []*unstructured.Unstructured {
	o := Options{ClusterUID: clusterUID}
	return []*unstructured.Unstructured{
		o.object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "", ClusterScoped(clusterUID), nil),
		o.object("rbac.authorization.k8s.io/v1", "ClusterRole", "", ClusterScoped(clusterUID), nil),
		o.object("v1", "Namespace", "", Namespace(clusterUID), nil),
		o.object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "", PolicyName(clusterUID), nil),
		o.object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "", PolicyName(clusterUID), nil),
	}
}

package multicluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/process"
	"rik.dev/rik/internal/testkit/program"
)

const gadgetsName = "gadgets.changes.example.org"

const gadgetsCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.changes.example.org}
spec:
  group: changes.example.org
  scope: Namespaced
  names: {plural: gadgets, kind: Gadget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}, status: {type: object, properties: {seen: {type: integer}}}}}}
`

var (
	gadgets    = schema.GroupVersionResource{Group: "changes.example.org", Version: "v1", Resource: "gadgets"}
	crds       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	eventsType = schema.GroupVersionResource{Version: "v1", Resource: "events"}
)

// changing is a kcp with one member that changes its CRD.
type changing struct {
	*testing.T
	up, down dynamic.Interface
}

func startChanging(t *testing.T) *changing {
	t.Helper()
	dir, err := program.Dir()
	if err != nil {
		t.Fatal(err)
	}
	physical := kube.Shared(t)
	c := &changing{T: t, down: dynamic.NewForConfigOrDie(physical.Rest())}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(gadgetsCRD), &crd.Object); err != nil {
		t.Fatal(err)
	}
	if _, err := c.down.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.removeType)
	root := filepath.Join(t.TempDir(), "root")
	kcp, err := process.Start(filepath.Join(dir, "kcp"), filepath.Join(t.TempDir(), "log"),
		"--root-directory", root, "--bind-address", "127.0.0.1", "--port", "0", "--push-mode", "--auto-publish-apis",
		"--resources-to-sync", gadgetsName+",deployments.apps", "--split-types", gadgetsName, "--log-level", "debug", "--discovery-poll-interval", "2s")
	if err != nil {
		t.Fatal(err)
	}
	log := output.OfFailed(t)
	t.Cleanup(func() {
		if err := kcp.Stop(); err != nil {
			t.Error(err)
		}
		fmt.Fprint(log, kcp.Log())
	})
	config := upstream(t, root)
	c.up = dynamic.NewForConfigOrDie(config)
	register(t, config, "east", physical.Kubeconfig())
	c.cluster("gadgets are carried", func(o *workloadv1alpha1.Cluster) bool { return slices.Contains(o.Status.SyncedResources, gadgetsName) })
	return c
}

func (c *changing) removeType() {
	err := c.down.Resource(crds).Delete(context.WithoutCancel(c.Context()), gadgetsName, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.Error(err)
	}
}

// cluster waits until the Cluster is ready and satisfies want.
func (c *changing) cluster(what string, want func(*workloadv1alpha1.Cluster) bool) {
	c.Helper()
	poll.Until(c.T, kube.Timeout, what, func(ctx context.Context) error {
		o, err := c.up.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Get(ctx, "east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		east := &workloadv1alpha1.Cluster{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, east); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(east.Status.Conditions, workloadv1alpha1.ConditionReady) || !want(east) {
			return fmt.Errorf("its status is %+v", east.Status)
		}
		return nil
	})
}

// says waits until the Cluster, which stays ready, reports a problem with gadgets.
func (c *changing) says(reason, text string) {
	c.Helper()
	c.cluster("the Cluster says "+reason, func(o *workloadv1alpha1.Cluster) bool {
		return slices.ContainsFunc(o.Status.ResourceProblems, func(p workloadv1alpha1.ResourceProblem) bool {
			return p.Resource == gadgetsName && p.Reason == reason && strings.Contains(p.Message, text)
		})
	})
}

func (c *changing) gadget(name string, size int64, sent bool) {
	c.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": gadgets.GroupVersion().String(), "kind": "Gadget", "spec": map[string]any{"size": size}}}
	o.SetName(name)
	if sent {
		o.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: "east"})
	}
	if _, err := c.up.Resource(gadgets).Namespace("default").Create(c.Context(), o, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *changing) patch(on dynamic.Interface, of schema.GroupVersionResource, namespace, name string, kind types.PatchType, text string, sub ...string) {
	c.Helper()
	if _, err := on.Resource(of).Namespace(namespace).Patch(c.Context(), name, kind, []byte(text), metav1.PatchOptions{}, sub...); err != nil {
		c.Fatal(err)
	}
}

func (c *changing) resize(name string, size int64) {
	c.Helper()
	c.patch(c.up, gadgets, "default", name, types.MergePatchType, fmt.Sprintf(`{"spec":{"size":%d}}`, size))
}

// below returns the gadget with a name in the member, or nil if the member has no such gadget.
func (c *changing) below(ctx context.Context, name string) (*unstructured.Unstructured, error) {
	list, err := c.down.Resource(gadgets).Namespace("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].GetName() == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

func (c *changing) arrives(name string, size int64) *unstructured.Unstructured {
	c.Helper()
	var found *unstructured.Unstructured
	poll.Until(c.T, kube.Timeout, fmt.Sprintf("%s has the size %d in the member", name, size), func(ctx context.Context) (err error) {
		if found, err = c.below(ctx, name); err != nil {
			return err
		}
		if found == nil {
			return errors.New("it is not there")
		}
		if got, _, _ := unstructured.NestedInt64(found.Object, "spec", "size"); got != size {
			return fmt.Errorf("it has %d", got)
		}
		return nil
	})
	return found
}

func (c *changing) is(name, what string, want func(*unstructured.Unstructured) bool) {
	c.Helper()
	poll.Until(c.T, kube.Timeout, name+" upstream: "+what, func(ctx context.Context) error {
		o, err := c.up.Resource(gadgets).Namespace("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil && !want(o) {
			err = fmt.Errorf("it is %v", o.Object)
		}
		return err
	})
}

func (c *changing) refused(name string, is bool) {
	c.Helper()
	c.is(name, fmt.Sprintf("it is refused: %v", is), func(o *unstructured.Unstructured) bool {
		said := o.GetAnnotations()[workloadv1alpha1.ProblemAnnotationPrefix+"east"]
		return is && strings.HasPrefix(said, "Refused:") && strings.Contains(said, "spec.size") || !is && said == ""
	})
}

// deletes deletes a gadget and waits until it is gone on both sides.
func (c *changing) deletes(name string) {
	c.Helper()
	if err := c.up.Resource(gadgets).Namespace("default").Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
	poll.Until(c.T, kube.Timeout, name+" is gone", func(ctx context.Context) error {
		o, err := c.up.Resource(gadgets).Namespace("default").Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			return fmt.Errorf("%v hold it", o.GetFinalizers())
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		below, err := c.below(ctx, name)
		if err == nil && below != nil {
			err = errors.New("it is in the member")
		}
		return err
	})
}

// unplaced creates a root and waits for the event that no cluster accepts it.
func (c *changing) unplaced(name string) {
	c.Helper()
	c.gadget(name, 1, false)
	poll.Until(c.T, kube.Timeout, "an event says that no cluster takes "+name, func(ctx context.Context) error {
		list, err := c.up.Resource(eventsType).Namespace("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			about, _, _ := unstructured.NestedString(list.Items[i].Object, "involvedObject", "name")
			if reason, _, _ := unstructured.NestedString(list.Items[i].Object, "reason"); about == name && reason == "Unplaced" {
				return nil
			}
		}
		return errors.New("the event does not exist")
	})
	if leaf, err := c.up.Resource(gadgets).Namespace("default").Get(c.Context(), name+"--east", metav1.GetOptions{}); err == nil {
		c.Errorf("it was placed: %v", leaf.Object)
	}
}

// TestMemberChangesItsCRD tests the built kcp with a real API server as member. The member
// narrows a CRD, and then removes it. Valid objects are still synced, and invalid ones are
// reported. Everything can be deleted, and nothing new is placed there.
func TestMemberChangesItsCRD(t *testing.T) {
	c := startChanging(t)
	for name, size := range map[string]int64{"fits": 5, "large": 500, "small": 7, "huge": 900} {
		c.gadget(name, size, true)
		c.arrives(name, size)
	}
	c.gadget("root", 2, false)
	c.arrives("root", 2)
	c.patch(c.down, crds, "", gadgetsName, types.JSONPatchType,
		`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum","value":100}]`)
	c.says(workloadv1alpha1.ResourceIncompatible, ".spec.size")

	// Updates, statuses and deletions of valid objects continue.
	c.resize("fits", 6)
	there := c.arrives("fits", 6)
	c.patch(c.down, gadgets, there.GetNamespace(), "fits", types.MergePatchType, `{"status":{"seen":6}}`, "status")
	c.is("fits", "its status comes up", func(o *unstructured.Unstructured) bool {
		seen, _, _ := unstructured.NestedInt64(o.Object, "status", "seen")
		return seen == 6
	})
	c.deletes("small")
	c.gadget("later", 3, true)
	c.arrives("later", 3)

	// Invalid objects are reported, and accepted when they become valid.
	c.resize("large", 600)
	c.refused("large", true)
	c.gadget("too-large", 101, true)
	c.refused("too-large", true)
	c.resize("large", 50)
	c.arrives("large", 50)
	c.refused("large", false)
	c.resize("too-large", 100)
	c.arrives("too-large", 100)
	c.refused("too-large", false)
	// The member still stores the old object, which is not valid there.
	c.deletes("huge")
	c.unplaced("narrowed")
	c.arrives("root", 2)

	// The member reverts the change.
	c.patch(c.down, crds, "", gadgetsName, types.JSONPatchType,
		`[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maximum"}]`)
	c.cluster("nothing is wrong with gadgets", func(o *workloadv1alpha1.Cluster) bool {
		return !slices.ContainsFunc(o.Status.ResourceProblems, func(p workloadv1alpha1.ResourceProblem) bool { return p.Resource == gadgetsName })
	})
	c.arrives("narrowed", 1)

	c.removeType()
	c.says(workloadv1alpha1.ResourceNotServed, "")
	c.unplaced("removed")
}

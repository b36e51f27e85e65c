package syncerauth

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

var (
	errSyncerVerb = errors.New("syncers may create only events")
	errSyncerElse = errors.New("syncers may write the status, and otherwise only annotations and a finalizer with the name of their own cluster")
	errNotTarget  = errors.New("the object is not sent to this syncer's cluster: the syncer may only remove annotations and finalizers with the name of its cluster")
	errReport     = errors.New("in the status of its Cluster a syncer may write only the heartbeat, pausedDeletes, the conditions " + strings.Join(reported, ", ") +
		", and resourceProblems with the reasons " + strings.Join(workloadv1alpha1.SyncerResourceReasons, ", "))
	errShared = errors.New("the object is sent to several clusters: its status in each cluster belongs in an annotation")
)

// checkSyncer refuses writes that a syncer may not make. The authorizer has allowed the
// request, and this function checks its effect.
func (p *Plugin) checkSyncer(ctx context.Context, cluster string, a admission.Attributes) error {
	resource := a.GetResource().GroupResource()
	switch {
	case isEventCreation(a):
		return p.checkEvent(ctx, cluster, a.GetObject())
	case a.GetOperation() == admission.Create:
		return errSyncerVerb
	}
	if resource == workloadv1alpha1.Resource("clusters") && a.GetName() == cluster && a.GetSubresource() == "status" {
		return checkReport(a.GetOldObject(), a.GetObject())
	}
	return checkChange(cluster, a.GetSubresource(), a.GetOldObject(), a.GetObject())
}

// reported are the conditions of a Cluster that its syncer writes.
var reported = []string{workloadv1alpha1.ConditionSyncerReady, workloadv1alpha1.ConditionDeletesPaused, workloadv1alpha1.ConditionFencing}

// checkReport compares a Cluster's status before and after its syncer's write. A syncer must
// not change the parts that the kcp's controllers write, because they and the splitter rely on
// them. These are the identity of the cluster, its readiness, its capacity, and the synced types.
func checkReport(old, now runtime.Object) error {
	before, err := controllersPart(old)
	if err != nil {
		return err
	}
	after, err := controllersPart(now)
	if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(before, after) {
		return errReport
	}
	return nil
}

// controllersPart returns a Cluster's status without the parts that a syncer may write. It does
// not decode the status into its type, because its quantities are not validated yet.
func controllersPart(object runtime.Object) (map[string]any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("programmer error: a Cluster is a %T", object)
	}
	status, _, err := unstructured.NestedMap(u.Object, "status")
	if err != nil {
		return nil, fmt.Errorf("reading the status: %w", err)
	}
	part := map[string]any{}
	for field, value := range status {
		switch field {
		case "lastHeartbeatTime", "pausedDeletes":
		case "resourceProblems":
			problems, _ := value.([]any)
			for _, p := range problems {
				problem, _ := p.(map[string]any)
				reason, _ := problem["reason"].(string)
				if !slices.Contains(workloadv1alpha1.SyncerResourceReasons, reason) {
					part[fmt.Sprintf("problem %s of %v", reason, problem["resource"])] = p
				}
			}
		case "conditions":
			conditions, _ := value.([]any)
			for _, c := range conditions {
				condition, _ := c.(map[string]any)
				if kind, _ := condition["type"].(string); !slices.Contains(reported, kind) {
					part["condition "+kind] = c
				}
			}
		default:
			part[field] = value
		}
	}
	return part, nil
}

// checkChange compares an object before and after a syncer's write.
func checkChange(cluster, subresource string, old, now runtime.Object) error {
	before, err := meta.Accessor(old)
	if err != nil {
		return fmt.Errorf("reading the object before the write: %w", err)
	}
	if !concerns(before, cluster) {
		return errors.New(notSent)
	}
	if subresource == "status" && len(workloadv1alpha1.Targets(before.GetLabels())) > 1 {
		return errShared
	}
	keptOld, err := othersPart(cluster, subresource, old)
	if err != nil {
		return err
	}
	keptNow, err := othersPart(cluster, subresource, now)
	if err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(keptOld, keptNow) {
		return errSyncerElse
	}
	if isTarget(before, cluster) {
		return nil
	}
	return checkTakingBack(cluster, subresource, before, now)
}

// checkTakingBack allows a syncer whose cluster is no longer a target to remove the metadata
// with its name, and to add nothing.
func checkTakingBack(cluster, subresource string, before metav1.Object, now runtime.Object) error {
	after, err := meta.Accessor(now)
	if err != nil {
		return fmt.Errorf("reading the object after the write: %w", err)
	}
	if subresource == "status" || holders(after).Difference(holders(before)).Len() > 0 {
		return errNotTarget
	}
	for _, key := range ownAnnotations(cluster) {
		value, present := after.GetAnnotations()[key]
		if present && value != before.GetAnnotations()[key] {
			return errNotTarget
		}
	}
	return nil
}

func ownAnnotations(cluster string) []string {
	return []string{workloadv1alpha1.StatusAnnotationPrefix + cluster, workloadv1alpha1.ProblemAnnotationPrefix + cluster}
}

// othersPart returns a copy of an object without the parts that the syncer may write, and
// without the server's own bookkeeping.
func othersPart(cluster, subresource string, object runtime.Object) (runtime.Object, error) {
	part := object.DeepCopyObject()
	metadata, err := meta.Accessor(part)
	if err != nil {
		return nil, fmt.Errorf("reading the metadata: %w", err)
	}
	annotations := metadata.GetAnnotations()
	for _, key := range ownAnnotations(cluster) {
		delete(annotations, key)
	}
	if len(annotations) == 0 {
		annotations = nil
	}
	metadata.SetAnnotations(annotations)
	finalizers := slices.DeleteFunc(slices.Clone(metadata.GetFinalizers()), func(f string) bool {
		return f == workloadv1alpha1.FinalizerPrefix+cluster
	})
	if len(finalizers) == 0 {
		finalizers = nil
	}
	metadata.SetFinalizers(finalizers)
	metadata.SetManagedFields(nil)
	metadata.SetResourceVersion("")
	metadata.SetGeneration(0)
	if subresource == "status" {
		dropStatus(part)
	}
	return part, nil
}

func dropStatus(object runtime.Object) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		delete(u.Object, "status")
		return
	}
	if status := reflect.ValueOf(object).Elem().FieldByName("Status"); status.IsValid() {
		status.SetZero()
	}
}

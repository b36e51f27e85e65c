// Package revision makes WorkloadRevisions and the Instances that run them.
// Everything here is a plain function of its arguments, so that the API server
// and the controller, which may both make the first revision of a template,
// make the same one.
package revision

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/api/rik/fence"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// alphabet has no vowels, so that no hash spells a word, and none of the
// characters that are easily confused.
const alphabet = "bcdfghjklmnpqrstvwxz2456789"

// hashLength gives 47 bits: a workload keeps a few dozen revisions.
const hashLength = 10

// MaxWorkloadName is the longest name of a Workload: 63, the limit of a label,
// without "-" and the hash of a revision.
const MaxWorkloadName = 63 - 1 - hashLength

// Hash names a template of one workload. The workload's UID is part of it: a
// workload that was deleted and made again shares no revision with the first,
// whose instances may still be ending.
//
// It is computed over JSON, in which a field that is added to the types later
// and left empty leaves no trace, so that an upgrade rolls nothing out.
func Hash(workload types.UID, template *rikv1alpha1.InstanceTemplate) string {
	text, err := json.Marshal(template)
	if err != nil {
		// Nothing in the type can fail to marshal.
		panic(fmt.Sprintf("programmer error: marshaling a template: %v", err))
	}
	h := sha256.New()
	h.Write([]byte(workload))
	h.Write([]byte{0})
	h.Write(text)
	sum := h.Sum(nil)
	out := make([]byte, hashLength)
	for i := range out {
		out[i] = alphabet[int(sum[i])%len(alphabet)]
	}
	return string(out)
}

// Fence is the time of the fence that a workload asks for, for itself or in its template.
// It is false if it asks for none.
func Fence(w *rikv1alpha1.Workload) (time.Duration, bool) {
	if after, asks := fence.After(w.Annotations); asks {
		return after, true
	}
	return fence.After(w.Spec.Annotations)
}

// Template is what a workload's instances are made of now. A fence that the workload asks
// for is part of it, so that no node has an instance without knowing of it; and so that
// none runs twice when a node is cut off, they stop there without contact.
func Template(w *rikv1alpha1.Workload) *rikv1alpha1.InstanceTemplate {
	out := w.Spec.InstanceTemplate.DeepCopy()
	if after := w.Annotations[fence.Annotation]; after != "" {
		out.Annotations = merged(out.Annotations, map[string]string{fence.Annotation: after})
	}
	if _, fenced := fence.After(out.Annotations); fenced {
		out.OnDisconnect = rikv1alpha1.DisconnectStop
	}
	return out
}

// Name is the name of the revision of a workload's present template.
func Name(w *rikv1alpha1.Workload) string {
	return w.Name + "-" + Hash(w.UID, Template(w))
}

// For makes the revision of a workload's present template. Its number is left
// at 0; whoever stores it gives it Next.
func For(w *rikv1alpha1.Workload) *rikv1alpha1.WorkloadRevision {
	present := Template(w)
	hash := Hash(w.UID, present)
	yes := true
	return &rikv1alpha1.WorkloadRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Namespace,
			Name:      w.Name + "-" + hash,
			Labels: map[string]string{
				rikv1alpha1.LabelWorkload: w.Name,
				rikv1alpha1.LabelRevision: hash,
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: rikv1alpha1.SchemeGroupVersion.String(), Kind: "Workload",
				Name: w.Name, UID: w.UID, Controller: &yes, BlockOwnerDeletion: &yes,
			}},
		},
		Template: *present,
	}
}

// Next is the number of a revision made when the given ones exist.
func Next(existing []rikv1alpha1.WorkloadRevision) int64 {
	var highest int64
	for i := range existing {
		highest = max(highest, existing[i].Revision)
	}
	return highest + 1
}

// Stamp makes an Instance one of a revision: names, labels, annotations, owner
// and the finalizer that its node's confirmation removes. Labels and
// annotations that the template gives do not override those the instance has,
// and nothing overrides rik's own.
func Stamp(i *rikv1alpha1.Instance, r *rikv1alpha1.WorkloadRevision) {
	workload := r.Labels[rikv1alpha1.LabelWorkload]
	i.Namespace = r.Namespace
	i.Spec.Workload, i.Spec.Revision = workload, r.Name
	if i.Name == "" && i.GenerateName == "" {
		i.GenerateName = workload + "-"
	}
	i.Labels = merged(r.Template.Labels, i.Labels)
	if i.Labels == nil {
		i.Labels = map[string]string{}
	}
	i.Labels[rikv1alpha1.LabelWorkload] = workload
	i.Labels[rikv1alpha1.LabelRevision] = r.Labels[rikv1alpha1.LabelRevision]
	i.Annotations = merged(r.Template.Annotations, i.Annotations)
	i.OwnerReferences = nil
	for _, o := range r.OwnerReferences {
		i.OwnerReferences = append(i.OwnerReferences, *o.DeepCopy())
	}
	for _, f := range i.Finalizers {
		if f == rikv1alpha1.FinalizerNode {
			return
		}
	}
	i.Finalizers = append(i.Finalizers, rikv1alpha1.FinalizerNode)
}

func merged(below, above map[string]string) map[string]string {
	if len(below) == 0 {
		return above
	}
	out := maps.Clone(below)
	maps.Copy(out, above)
	return out
}

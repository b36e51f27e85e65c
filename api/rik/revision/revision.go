// Package revision makes WorkloadRevisions, and the Instances that run them. All functions are
// pure. The API server and the controller can both make the first revision of a template, and they
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

// alphabet has no vowels, so that no hash is a word. It also has no characters that are easily
// confused.
const alphabet = "bcdfghjklmnpqrstvwxz2456789"

// hashLength characters have 47 bits. That is enough, because a workload keeps only a few dozen
// revisions.
const hashLength = 10

// MaxWorkloadName is the maximum length of a Workload's name: 63, the limit of a label, minus "-"
// and the hash of a revision.
const MaxWorkloadName = 63 - 1 - hashLength

// Hash identifies a template of one workload. It includes the workload's UID. Therefore a workload
// that is deleted and created again shares no revision with the first one, whose instances may
// still exist.
//
// Hash hashes the JSON of the template. JSON does not contain empty fields, so a field that is
// later added to the types does not change the hash, and an upgrade starts no rollout.
func Hash(workload types.UID, template *rikv1alpha1.InstanceTemplate) string {
	text, err := json.Marshal(template)
	if err != nil {
		// All fields of the type can be marshaled.
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

// Fence returns the time of a workload's fence, which an annotation of the workload or of its
// template sets. It returns false if there is none.
func Fence(w *rikv1alpha1.Workload) (time.Duration, bool) {
	if after, asks := fence.After(w.Annotations); asks {
		return after, true
	}
	return fence.After(w.Spec.Annotations)
}

// Template returns the present template of a workload's instances. It includes the workload's
// fence, so that each node with an instance has it. With a fence, instances stop on a node that is
// disconnected, so that no replacement runs at the same time.
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

// Name returns the name of the revision of a workload's present template.
func Name(w *rikv1alpha1.Workload) string {
	return w.Name + "-" + Hash(w.UID, Template(w))
}

// For returns the revision of a workload's present template. Its number is 0. The caller sets it to
// Next before it stores the revision.
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

// Next returns the number of a new revision after the existing ones.
func Next(existing []rikv1alpha1.WorkloadRevision) int64 {
	var highest int64
	for i := range existing {
		highest = max(highest, existing[i].Revision)
	}
	return highest + 1
}

// Stamp makes an Instance an instance of a revision. It sets names, labels, annotations, the owner
// and the finalizer, which stays until the node confirms the removal. Labels and annotations of
// the instance have precedence over those of the template. rik's own labels have precedence over
// both.
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

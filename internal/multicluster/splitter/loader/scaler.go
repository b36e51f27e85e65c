package loader

import (
	"context"
	"slices"
	"strings"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/splitter"
)

// ReadScalers reads the autoscalers that refer to the root, for [RootState.Yield]. They affect the
// content of leaves, but not the division.
func (w *RootState) ReadScalers(ctx context.Context, source Source) error {
	if !w.Type.Scalable || len(w.Problems) > 0 {
		return nil
	}
	related, err := w.related(ctx, source, Query{Referred: w.Root.GetName()})
	if err != nil {
		return err
	}
	own := Related{w.Root, w.Type}
	for _, r := range related {
		refers := func(ref splitter.Reference) bool { return isTo(ref, own) }
		if !splitter.IsAutoscaler(r.Type.GVK.GroupKind()) || !slices.ContainsFunc(splitter.References(r.Root), refers) {
			continue
		}
		scaler, err := readAlone(ctx, source, r.Root, r.Type, w.State.Now)
		if err != nil {
			return err
		}
		w.scalers = append(w.scalers, scaler)
	}
	return nil
}

// Yield returns the value of [workloadv1alpha1.YieldAnnotation] on the leaf in a cluster. It is
// the value of the root. If an autoscaler of the kcp that refers to the root is in the cluster,
// the replicas are added. They are not added if the root yields nothing.
func (w *RootState) Yield(cluster string) string {
	said := w.Root.GetAnnotations()[workloadv1alpha1.YieldAnnotation]
	isThere := func(scaler *RootState) bool {
		leaf := scaler.Leaf(cluster)
		return leaf != nil && leaf.GetDeletionTimestamp() == nil
	}
	if strings.TrimSpace(said) == workloadv1alpha1.YieldNone || !slices.ContainsFunc(w.scalers, isThere) {
		return said
	}
	replicas := strings.Join(w.Type.Path.SpecPath(), ".")
	var fields []string
	for field := range strings.SplitSeq(said, ",") {
		if field = strings.TrimSpace(field); field != "" {
			fields = append(fields, field)
		}
		if strings.TrimPrefix(field, ".") == replicas {
			return said
		}
	}
	return strings.Join(append(fields, replicas), ",")
}

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"rik.dev/rik/internal/multicluster/splitter"
	"rik.dev/rik/internal/reconcile/event"
)

// The reasons of events about roots.
const (
	reasonDivided       = "Divided"
	reasonUnplaced      = "Unplaced"
	reasonRolloutPaused = "RolloutPaused"
	reasonLeafRefused   = "LeafRefused"
	reasonStatusRefused = "StatusRefused"
	reasonRefused       = "RefusedEverywhere"
)

// record starts the event recorder. The returned function stops it.
func (c *Controller) record(ctx context.Context) (end func()) {
	c.recorder, end = event.NewRecorder(event.NewSink(ctx, c.eventsClient), runtime.NewScheme(), fieldManager)
	return end
}

// event records an event about the root.
func (p *pass) event(kind, reason, message string) {
	p.recorder.Event(&corev1.ObjectReference{
		APIVersion: p.root.GetAPIVersion(), Kind: p.root.GetKind(), Namespace: p.root.GetNamespace(),
		Name: p.root.GetName(), UID: p.root.GetUID(), ResourceVersion: p.root.GetResourceVersion(),
	}, kind, reason, message)
}

// reportMoves reports what changed and why. It leaves out clusters whose leaf could not be
// written. The next pass decides on those again, but does not report the successful ones.
func (p *pass) reportMoves(failed map[string]bool) {
	if message := movesOf(p.result, failed); message != "" {
		p.event(corev1.EventTypeNormal, reasonDivided, message)
		p.config.Logger.Info("divided a root", "root", p.key.String(), "changes", message)
	}
}

// report records events for states that the user must resolve.
func (p *pass) report() {
	p.memory.report(p.key, splitter.ReasonInvalidPlacement, "")
	unplaced := ""
	if missing := p.result.Unplaced + p.result.Stranded; missing > 0 {
		unplaced = splitter.Reason{Code: splitter.NothingTakesParts, Number: int64(missing)}.String()
	}
	if p.memory.report(p.key, reasonUnplaced, unplaced) {
		p.event(corev1.EventTypeWarning, reasonUnplaced, unplaced)
	}
	refused := ""
	if cluster := p.result.Refused; cluster != "" {
		refused = splitter.RefusedText(cluster, refusal(p.state, cluster))
	}
	if p.memory.report(p.key, reasonRefused, refused) {
		p.event(corev1.EventTypeWarning, reasonRefused, refused)
	}
	paused := ""
	if p.plan.paused {
		paused = fmt.Sprintf("the new spec has failed in %s; the other clusters keep the previous spec", p.plan.waits)
	}
	if p.memory.report(p.key, reasonRolloutPaused, paused) {
		p.event(corev1.EventTypeWarning, reasonRolloutPaused, paused)
	}
}

func (p *pass) reportProblems() {
	problems := p.state.Problems.ToAggregate().Error()
	if p.memory.report(p.key, splitter.ReasonInvalidPlacement, problems) {
		p.event(corev1.EventTypeWarning, splitter.ReasonInvalidPlacement, problems)
	}
}

func (p *pass) reportFailure(cluster string, err error) {
	message := fmt.Sprintf("the leaf for %s: %v", cluster, err)
	if p.memory.report(p.key, reasonLeafRefused+cluster, message) {
		p.event(corev1.EventTypeWarning, reasonLeafRefused, message)
	}
}

// reportStatus reports that the API server has rejected the status of the root. If refused is
// empty, it reports nothing.
func (p *pass) reportStatus(refused string) {
	if p.memory.report(p.key, reasonStatusRefused, refused) {
		p.event(corev1.EventTypeWarning, reasonStatusRefused, "the API server refuses the combined status of the clusters, so the status stays as it was: "+refused)
	}
}

// movesOf returns the changes of parts, with the reasons for clusters that lose parts.
func movesOf(result splitter.Result, failed map[string]bool) string {
	var parts []string
	for _, change := range result.Changes {
		if change.Action == splitter.Note || change.From == change.To || failed[change.Cluster] {
			continue
		}
		text := fmt.Sprintf("%s %d to %d", change.Cluster, change.From, change.To)
		at := slices.IndexFunc(result.Explanation.Clusters, func(s splitter.Share) bool { return s.Cluster == change.Cluster })
		if at >= 0 && result.Explanation.Clusters[at].Standing == splitter.Out {
			var reasons []string
			for _, reason := range result.Explanation.Clusters[at].Reasons {
				reasons = append(reasons, reason.String())
			}
			text += " (" + strings.Join(reasons, "; ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

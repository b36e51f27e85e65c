package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/rik/revision"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/ownership"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/target"
	"rik.dev/rik/internal/rikctl/trouble"
	"rik.dev/rik/internal/rikctl/waiting"
)

// The reasons of condition Progressing when a rollout cannot continue by itself: it made no
// progress until its deadline, or its instances failed and no new ones start.
const (
	reasonDeadline = "ProgressDeadlineExceeded"
	reasonFailed   = "InstancesFailed"
)

// progress is the state of a rollout.
type progress struct {
	message string
	done    bool
}

// statusResult is the result of "rollout status" for scripts.
type statusResult struct {
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"`
	Done      bool   `json:"done"`
	// Message is the state that was seen last.
	Message string `json:"message,omitempty"`
	// Replicas is the number that the workload shall have. The others are those of its status.
	Replicas        int32 `json:"replicas"`
	CurrentReplicas int32 `json:"currentReplicas"`
	UpdatedReplicas int32 `json:"updatedReplicas"`
	ReadyReplicas   int32 `json:"readyReplicas"`
	// Waiting says what the instances that are not ready wait for. An end has none.
	Waiting []string `json:"waiting,omitempty"`

	printer.Outcome `json:",inline"`
}

// saw keeps the state of the workload.
func (r *statusResult) saw(w *rikv1alpha1.Workload, p progress) {
	r.Done, r.Message, r.Replicas = p.done, p.message, wanted(w)
	r.CurrentReplicas, r.UpdatedReplicas, r.ReadyReplicas = w.Status.Replicas, w.Status.UpdatedReplicas, w.Status.ReadyReplicas
}

// wanted returns how many instances a workload shall have.
func wanted(w *rikv1alpha1.Workload) int32 {
	if w.Spec.Replicas == nil {
		return 1
	}
	return *w.Spec.Replicas
}

// rolloutProgress reads a workload's status. An error is final: the rollout cannot finish by
// waiting.
func rolloutProgress(w *rikv1alpha1.Workload) (progress, error) {
	s := w.Status
	if w.Spec.Deploy != rikv1alpha1.DeployAutomatic {
		return progress{}, fmt.Errorf("workload %s has deploy: Manual, so it has no rollouts; users create its instances", w.Name)
	}
	if w.Generation > s.ObservedGeneration {
		return progress{message: "waiting for the controller to observe the change"}, nil
	}
	if w.Spec.Paused {
		return progress{}, clierror.WithNext(fmt.Errorf("the rollout of workload %s is paused", w.Name),
			fmt.Sprintf("\"rikctl rollout resume workload/%s\" resumes it", w.Name))
	}
	if c := meta.FindStatusCondition(s.Conditions, rikv1alpha1.WorkloadProgressing); c != nil &&
		c.Status == metav1.ConditionFalse && (c.Reason == reasonDeadline || c.Reason == reasonFailed) {
		return progress{}, clierror.WithNext(fmt.Errorf("the rollout of workload %s makes no progress: %s", w.Name, c.Message),
			fmt.Sprintf("\"rikctl describe workload %s\" shows its instances, \"rikctl rollout undo workload/%s\" rolls back", w.Name, w.Name))
	}
	want := wanted(w)
	switch {
	case s.UpdatedReplicas < want:
		return progress{message: fmt.Sprintf("%d of %d instances are of the new revision", s.UpdatedReplicas, want)}, nil
	case s.Replicas > s.UpdatedReplicas:
		return progress{message: fmt.Sprintf("%d instances of older revisions are still there", s.Replicas-s.UpdatedReplicas)}, nil
	case s.ReadyReplicas < want:
		return progress{message: fmt.Sprintf("%d of %d instances are ready", s.ReadyReplicas, want)}, nil
	}
	return progress{fmt.Sprintf("workload %s is rolled out: %d of %d instances are ready", w.Name, s.ReadyReplicas, want), true}, nil
}

// undoTarget finds the revision to return to: the one with the given number, or the newest one
// below the current.
func undoTarget(revisions []rikv1alpha1.WorkloadRevision, current string, number int64) (*rikv1alpha1.WorkloadRevision, error) {
	sorted := slices.Clone(revisions)
	slices.SortFunc(sorted, func(a, b rikv1alpha1.WorkloadRevision) int { return int(b.Revision - a.Revision) })
	for i := range sorted {
		r := &sorted[i]
		switch {
		case number > 0 && r.Revision != number:
			continue
		case r.Name == current && number > 0:
			return nil, fmt.Errorf("revision %d is the current one", number)
		case r.Name == current:
			continue
		}
		return r, nil
	}
	if number > 0 {
		return nil, clierror.NotFound(fmt.Errorf("revision %d does not exist; there are %s", number, numbers(sorted)))
	}
	return nil, errors.New("there is no earlier revision to return to")
}

func numbers(revisions []rikv1alpha1.WorkloadRevision) string {
	words := []string{}
	for i := range revisions {
		words = append(words, fmt.Sprint(revisions[i].Revision))
	}
	return strings.Join(words, ", ")
}

// NewCommand returns the command "rikctl rollout".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "rollout",
		Short: "Watch, undo, restart or pause the rollout of a workload",
	}, t.rolloutStatus(), t.rolloutHistory(), t.rolloutUndo(),
		t.rolloutPatch("restart", "Replace all instances by new ones with the same content", "restarted", func(now time.Time) any {
			return map[string]any{"annotations": map[string]string{rikv1alpha1.AnnotationRestartedAt: now.UTC().Format(time.RFC3339)}}
		}),
		t.rolloutPatch("pause", "Pause a rollout", "paused", func(time.Time) any { return map[string]any{"paused": true} }),
		t.rolloutPatch("resume", "Resume a paused rollout", "resumed", func(time.Time) any { return map[string]any{"paused": nil} }))
}

// workloadCommand returns a subcommand that acts on one workload.
func (t *tool) workloadCommand(use, short string, run func(ctx context.Context, c client.WithWatch, key client.ObjectKey) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " workload/NAME",
		Short: short,
		Args:  cmdline.Args(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return completion.CompGetResource(t.Kube, "workloads.rik.dev", typed), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			workload, err := target.WorkloadName(cmd, given)
			if err != nil {
				return err
			}
			c, namespace, err := t.NamespacedClient()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c, client.ObjectKey{Namespace: namespace, Name: workload})
		},
	}
}

// rolloutPatch returns a rollout subcommand that changes the spec.
func (t *tool) rolloutPatch(use, short, done string, spec func(time.Time) any) *cobra.Command {
	return t.workloadCommand(use, short, func(ctx context.Context, c client.WithWatch, key client.ObjectKey) error {
		patch, err := json.Marshal(map[string]any{"spec": spec(time.Now())})
		if err != nil {
			return err
		}
		w := &rikv1alpha1.Workload{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
		if err := c.Patch(ctx, w, client.RawPatch(types.MergePatchType, patch), ownership.Rollout); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(t.Streams.Out, "workload/%s %s\n", key.Name, done)
		return nil
	})
}

// rolloutReminder is the interval of reports about a rollout that does not change.
const rolloutReminder = 10 * time.Second

// troublesRead is the interval of looks for what the instances wait for, for the line on a
// terminal.
const troublesRead = 2 * time.Second

// rolloutReport prints the progress of a rollout: each change, and a reminder after a while
// without a change. The reminder says what the instances wait for. On a terminal a line shows it,
// and only the end is printed.
type rolloutReport struct {
	out      io.Writer
	line     *waiting.Line // nil: lines
	troubles func(*rikv1alpha1.Workload) []string

	mu           sync.Mutex
	w            *rikv1alpha1.Workload
	last         string
	lastTroubles []string
	news         bool // whether something was printed since the last reminder
}

func (r *rolloutReport) saw(w *rikv1alpha1.Workload, p progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.w = w
	if r.line != nil && !p.done {
		r.last = p.message
		r.line.Set(waiting.State{What: p.message, For: strings.Join(r.lastTroubles, "; ")})
		return
	}
	if p.message != r.last {
		r.last, r.news = p.message, true
		_, _ = fmt.Fprintln(r.out, p.message)
	}
}

// remind prints reminders until the caller calls stop.
func (r *rolloutReport) remind(interval time.Duration) (stop func()) {
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				r.reminder()
			}
		}
	})
	return func() {
		close(done)
		group.Wait()
	}
}

func (r *rolloutReport) reminder() {
	r.mu.Lock()
	w := r.w
	r.mu.Unlock()
	if w == nil {
		return
	}
	troubles := r.troubles(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastTroubles = troubles
	if r.line != nil {
		r.line.Set(waiting.State{What: r.last, For: strings.Join(troubles, "; ")})
		return
	}
	if r.news && len(troubles) == 0 {
		r.news = false
		return
	}
	r.news = false
	_, _ = fmt.Fprintln(r.out, "still "+r.last)
	for _, line := range troubles {
		_, _ = fmt.Fprintln(r.out, printers.EscapeTerminal(line))
	}
}

// statusFlags are the flags of "rollout status".
type statusFlags struct {
	follow  bool
	timeout time.Duration
	output  string
}

func (t *tool) rolloutStatus() *cobra.Command {
	var f statusFlags
	cmd := t.workloadCommand("status", "Wait until a workload is rolled out", func(ctx context.Context, c client.WithWatch, key client.ObjectKey) error {
		result := statusResult{Namespace: key.Namespace, Workload: key.Name}
		err := t.runStatus(ctx, c, key, f, &result)
		return printer.Result(t.Streams.Out, f.output, &result, &result.Outcome, err)
	})
	cmd.Long = `Wait until a workload is rolled out: all its instances are of the newest revision, and
ready. On a terminal a line shows the progress.

With -o json or -o yaml, the standard output has one document when the command ends,
also after an error. The progress is then on the standard error.`
	cmd.Flags().BoolVarP(&f.follow, "watch", "w", true, "wait for the end")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "timeout, after which the exit code is 5; 0 means no timeout")
	printer.AddOutput(cmd, &f.output)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return printer.CheckOutput(cmd, f.output) }
	return cmd
}

// runStatus waits for the end of a rollout, and keeps its state in result.
func (t *tool) runStatus(ctx context.Context, c client.WithWatch, key client.ObjectKey, f statusFlags, result *statusResult) error {
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	out := printer.Steps(t.Streams, f.output)
	r := &rolloutReport{out: out, troubles: func(w *rikv1alpha1.Workload) []string { return trouble.OfWorkload(ctx, c, w) }}
	reminder := rolloutReminder
	if line := waiting.Begin(ctx, out, waiting.Options{Quiet: !f.follow || !waiting.IsTerminal(out)}); line.Shows() {
		defer line.End()
		r.line, r.out, reminder = line, line.Above(r.out), troublesRead
	}
	stop := r.remind(reminder)
	err := watchWorkload(ctx, c, key, func(w *rikv1alpha1.Workload) (bool, error) {
		p, err := rolloutProgress(w)
		result.saw(w, p)
		if err == nil {
			r.saw(w, p)
		}
		return p.done || !f.follow, err
	})
	stop()
	if f.output != "" && !result.Done && r.w != nil {
		result.Waiting = lastTroubles(ctx, c, r.w)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		what := append([]string{fmt.Sprintf("the rollout of workload %s; last seen: %s", key.Name, r.last)}, r.lastTroubles...)
		return clierror.TimeoutError{What: strings.Join(what, "\n")}
	}
	return err
}

// lastTroublesWithin is the timeout for reading what the instances wait for at the end.
const lastTroublesWithin = 5 * time.Second

// lastTroubles returns what the instances of a workload wait for, also after the end of ctx.
func lastTroubles(ctx context.Context, c client.Client, w *rikv1alpha1.Workload) []string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTroublesWithin)
	defer cancel()
	var texts []string
	for _, line := range trouble.OfWorkload(ctx, c, w) {
		texts = append(texts, strings.TrimSpace(line))
	}
	return texts
}

func (t *tool) rolloutHistory() *cobra.Command {
	var number int64
	cmd := t.workloadCommand("history", "List the revisions of a workload", func(ctx context.Context, c client.WithWatch, key client.ObjectKey) error {
		w, revisions, err := withRevisions(ctx, c, key)
		if err != nil {
			return err
		}
		if number == 0 {
			return printHistory(t.Streams.Out, w, revisions)
		}
		for i := range revisions {
			if revisions[i].Revision == number {
				return printTemplate(t.Streams.Out, &revisions[i])
			}
		}
		return fmt.Errorf("revision %d of workload %s not found; there are %s", number, key.Name, numbers(revisions))
	})
	cmd.Flags().Int64Var(&number, "revision", 0, "print this revision in full")
	return cmd
}

func (t *tool) rolloutUndo() *cobra.Command {
	var number int64
	cmd := t.workloadCommand("undo", "Return to an earlier revision", func(ctx context.Context, c client.WithWatch, key client.ObjectKey) error {
		var to *rikv1alpha1.WorkloadRevision
		err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
			w, revisions, err := withRevisions(ctx, c, key)
			if err != nil {
				return err
			}
			if to, err = undoTarget(revisions, currentRevision(w, revisions), number); err != nil {
				return fmt.Errorf("undoing the rollout of workload %s: %w", key.Name, err)
			}
			w.Spec.InstanceTemplate = *to.Template.DeepCopy()
			return c.Update(ctx, w, ownership.File)
		})
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(t.Streams.Out, "workload/%s rolled back to revision %d\n", key.Name, to.Revision)
		return nil
	})
	cmd.Flags().Int64Var(&number, "to-revision", 0, "the revision; the one before the current by default")
	return cmd
}

// withRevisions reads a workload and its revisions, oldest first.
func withRevisions(ctx context.Context, c client.Client, key client.ObjectKey) (*rikv1alpha1.Workload, []rikv1alpha1.WorkloadRevision, error) {
	w := &rikv1alpha1.Workload{}
	if err := c.Get(ctx, key, w); err != nil {
		return nil, nil, err
	}
	list := &rikv1alpha1.WorkloadRevisionList{}
	err := c.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingLabels{rikv1alpha1.LabelWorkload: key.Name})
	slices.SortFunc(list.Items, func(a, b rikv1alpha1.WorkloadRevision) int { return int(a.Revision - b.Revision) })
	return w, list.Items, err
}

// currentRevision returns the name of the revision of the workload's template. The status may
// still name the previous revision. It is used only if the new revision does not exist yet.
func currentRevision(w *rikv1alpha1.Workload, revisions []rikv1alpha1.WorkloadRevision) string {
	own := revision.Name(w)
	if slices.ContainsFunc(revisions, func(r rikv1alpha1.WorkloadRevision) bool { return r.Name == own }) {
		return own
	}
	return w.Status.CurrentRevision
}

func printHistory(out io.Writer, w *rikv1alpha1.Workload, revisions []rikv1alpha1.WorkloadRevision) error {
	if len(revisions) == 0 {
		_, err := fmt.Fprintf(out, "workload %s has no revisions yet\n", w.Name)
		return err
	}
	table := printers.GetNewTabWriter(out)
	_, _ = fmt.Fprintln(table, "REVISION\tNAME\tCURRENT\tRUNS")
	for i := range revisions {
		r := &revisions[i]
		current := ""
		if r.Name == currentRevision(w, revisions) {
			current = "yes"
		}
		_, _ = fmt.Fprintf(table, "%d\t%s\t%s\t%s\n", r.Revision, r.Name, current, printer.Runs(&r.Template))
	}
	return table.Flush()
}

func printTemplate(out io.Writer, r *rikv1alpha1.WorkloadRevision) error {
	data, err := yaml.Marshal(r.Template)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, bytes.NewReader(append(fmt.Appendf(nil, "# %s, revision %d\n", r.Name, r.Revision), data...)))
	return err
}

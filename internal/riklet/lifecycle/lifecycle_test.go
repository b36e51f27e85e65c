package lifecycle

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var errTest = errors.New("disk on fire")

// world counts what exists. Its steps are idempotent, as the contract requires.
type world struct {
	made map[string]bool
	log  []string
}

func (w *world) steps(names ...string) []Step {
	var steps []Step
	for _, name := range names {
		steps = append(steps, Step{
			Name: name,
			Do:   func(context.Context) error { w.made[name] = true; w.log = append(w.log, "+"+name); return nil },
			Undo: func(context.Context) error { delete(w.made, name); w.log = append(w.log, "-"+name); return nil },
		})
	}
	return steps
}

func TestSequenceOrder(t *testing.T) {
	t.Parallel()
	w := &world{made: map[string]bool{}}
	s := Sequence{Steps: w.steps("a", "b", "c")}
	if err := s.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Undo(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{"+a", "+b", "+c", "-c", "-b", "-a"}
	if diff := cmp.Diff(want, w.log); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

func TestFailAtEveryStep(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{made: map[string]bool{}}
			s := Sequence{Steps: w.steps(names...), Hook: FailAt(name, errTest)}
			err := s.Do(t.Context())
			if !errors.Is(err, errTest) || StepOf(err) != name {
				t.Fatalf("Do() = %v in step %q, want %v in step %q", err, StepOf(err), errTest, name)
			}
			if w.made[name] {
				t.Errorf("step %q was made although it failed before", name)
			}
			if err := s.Undo(t.Context()); err != nil {
				t.Fatalf("Undo() = %v", err)
			}
			if len(w.made) != 0 {
				t.Errorf("left after Undo: %v", w.made)
			}
		})
	}
}

func TestUndoStopsAtAFailure(t *testing.T) {
	t.Parallel()
	w := &world{made: map[string]bool{}}
	s := Sequence{Steps: w.steps("a", "b", "c")}
	if err := s.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Steps[1].Undo = func(context.Context) error { return errTest }
	if err := s.Undo(t.Context()); !errors.Is(err, errTest) || StepOf(err) != "b" {
		t.Fatalf("Undo() = %v, want %v in step b", err, errTest)
	}
	if !w.made["a"] || w.made["c"] {
		t.Errorf("made = %v, want a and b left and c gone", w.made)
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := &world{made: map[string]bool{}}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := Sequence{Steps: w.steps("a", "b"), Hook: func(step string, at Point) error {
		if step == "a" && at == AfterDo {
			cancel(errTest)
		}
		return nil
	}}
	if err := s.Do(ctx); !errors.Is(err, errTest) || StepOf(err) != "b" {
		t.Errorf("Do() = %v, want %v in step b", err, errTest)
	}
}

// TestUndoAfterAnyPrefix checks that Undo leaves nothing, whatever was done and however often, and
// that a second Undo changes nothing.
func TestUndoAfterAnyPrefix(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		w := &world{made: map[string]bool{}}
		for range rapid.IntRange(0, 3).Draw(t, "attempts") {
			stop := rapid.SampledFrom(append(slices.Clone(names), "none")).Draw(t, "stop")
			_ = Sequence{Steps: w.steps(names...), Hook: FailAt(stop, errTest)}.Do(context.Background())
		}
		for range 2 {
			if err := (Sequence{Steps: w.steps(names...)}).Undo(context.Background()); err != nil {
				t.Fatal(err)
			}
			if len(w.made) != 0 {
				t.Fatalf("left: %v", w.made)
			}
		}
	})
}

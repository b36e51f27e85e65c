// Package lifecycle runs the ordered steps that create something on a node, and undoes them.
//
// A Step is idempotent in both directions, and its Undo is safe if its Do never ran. Therefore a
// restarted agent can undo steps without knowing which of them an earlier process has done. The
// package defines the order, the joining of errors, and a hook with which tests fail or kill a
// process between two steps. It saves no state. A step of its user saves what must survive the
// process.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
)

// Step creates one part, and can remove it.
type Step struct {
	Name string
	// Do creates the part. A repeated call changes nothing. nil means that there is nothing to
	// create.
	Do func(ctx context.Context) error
	// Undo removes the part. It is safe if Do never ran, did not finish, or ran in an earlier
	// process. nil means that there is nothing to remove.
	Undo func(ctx context.Context) error
}

// Point is a point in time at which a Hook is called.
type Point string

// The points around a step.
const (
	BeforeDo   Point = "before-do"
	AfterDo    Point = "after-do"
	BeforeUndo Point = "before-undo"
	AfterUndo  Point = "after-undo"
)

// Hook is called at every point of a sequence. If it returns an error, that is the error of the
// step. Tests use it to fail or to end the process between two steps.
type Hook func(step string, at Point) error

// FailAt returns a Hook that makes the named step fail with err before it does anything.
func FailAt(step string, err error) Hook {
	return func(name string, at Point) error {
		if name == step && at == BeforeDo {
			return err
		}
		return nil
	}
}

// StepError names the step that failed.
type StepError struct {
	Step string
	Err  error
}

func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap returns the error of the step.
func (e *StepError) Unwrap() error { return e.Err }

// Sequence is an ordered list of steps.
type Sequence struct {
	Steps []Step
	Hook  Hook // may be nil
}

// Do runs the steps in order and stops at the first error, a *StepError. It undoes nothing. The
// caller decides whether to repeat Do later or to call Undo.
func (s Sequence) Do(ctx context.Context) error {
	for _, step := range s.Steps {
		if err := context.Cause(ctx); err != nil {
			return &StepError{Step: step.Name, Err: err}
		}
		if err := s.one(ctx, step.Name, step.Do, BeforeDo, AfterDo); err != nil {
			return &StepError{Step: step.Name, Err: err}
		}
	}
	return nil
}

// Undo undoes all steps in reverse order. It stops at a step that cannot be undone, because that
// step may still use what an earlier step has created: a mount point under a mount, for example. A
// repeated call starts again with the last step.
func (s Sequence) Undo(ctx context.Context) error {
	for i := len(s.Steps) - 1; i >= 0; i-- {
		step := s.Steps[i]
		if err := s.one(ctx, step.Name, step.Undo, BeforeUndo, AfterUndo); err != nil {
			return &StepError{Step: step.Name, Err: fmt.Errorf("undoing the step: %w", err)}
		}
	}
	return nil
}

func (s Sequence) one(ctx context.Context, name string, act func(context.Context) error, before, after Point) error {
	if err := s.hook(name, before); err != nil {
		return err
	}
	if act != nil {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return s.hook(name, after)
}

func (s Sequence) hook(name string, at Point) error {
	if s.Hook == nil {
		return nil
	}
	return s.Hook(name, at)
}

// StepOf returns the name of the step that failed with err, or "" if err is not from a step.
func StepOf(err error) string {
	if e, ok := errors.AsType[*StepError](err); ok {
		return e.Step
	}
	return ""
}

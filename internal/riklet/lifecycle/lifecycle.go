// Package lifecycle runs the ordered steps by which something on a node comes
// to be, and takes them back.
//
// A Step is idempotent in both directions, and its Undo is safe when its Do
// never ran: that is what lets a restarted agent undo what it cannot know to
// have been done. The package owns the order, the hook by which tests fail or
// kill a process between two steps, and the joining of errors. It keeps no
// state; what must outlive the process is saved by a step of its owner.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
)

// Step is one thing that is made and can be taken away again.
type Step struct {
	Name string
	// Do makes it; called again it finds it made. Nil: nothing to make.
	Do func(ctx context.Context) error
	// Undo removes it, whether or not Do ran, finished, or ran in a process
	// that is gone. Nil: nothing to remove.
	Undo func(ctx context.Context) error
}

// Point is a moment at which a Hook is called.
type Point string

// The moments around a step.
const (
	BeforeDo   Point = "before-do"
	AfterDo    Point = "after-do"
	BeforeUndo Point = "before-undo"
	AfterUndo  Point = "after-undo"
)

// Hook sees every moment of a sequence. An error it returns is the step's
// error; tests use it to fail, or to end the process, between any two steps.
type Hook func(step string, at Point) error

// FailAt is a Hook that fails the named step with err before it does anything.
func FailAt(step string, err error) Hook {
	return func(name string, at Point) error {
		if name == step && at == BeforeDo {
			return err
		}
		return nil
	}
}

// StepError says which step did not succeed.
type StepError struct {
	Step string
	Err  error
}

func (e *StepError) Error() string { return e.Step + ": " + e.Err.Error() }

// Unwrap gives the step's own error.
func (e *StepError) Unwrap() error { return e.Err }

// Sequence is an ordered list of steps.
type Sequence struct {
	Steps []Step
	Hook  Hook // may be nil
}

// Do makes the steps in order and stops at the first error, a *StepError. It
// undoes nothing: the caller decides whether to go on later or to take back.
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

// Undo takes back all steps, last first. A step that cannot be taken back ends
// it: what an earlier step made may still be in use by it (a mount point under
// a mount, a cgroup with a process in it). Called again it begins anew.
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

// StepOf gives the name of the step in which err arose, "" if it is of none.
func StepOf(err error) string {
	if e, ok := errors.AsType[*StepError](err); ok {
		return e.Step
	}
	return ""
}

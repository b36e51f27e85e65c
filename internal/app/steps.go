package app

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"rik.dev/rik/internal/sdnotify"
)

const (
	// stepShown is how long a step of the start takes before a line in the log names it.
	stepShown = time.Second
	// stepRepeated is the interval of the lines after that.
	stepRepeated = 5 * time.Second
)

// steps reports the steps of a start: to the service manager at once, and in the log if a step
// takes longer than a moment. Its methods are safe for concurrent use, and do nothing on nil.
type steps struct {
	notifier *sdnotify.Notifier
	log      *slog.Logger

	mu    sync.Mutex
	timer *time.Timer // nil: no step
}

func newSteps(n *sdnotify.Notifier, log *slog.Logger) *steps { return &steps{notifier: n, log: log} }

// begin ends the current step and begins another, which is named like "the datastore".
func (s *steps) begin(name string) {
	if s == nil {
		return
	}
	s.stop()
	s.notifier.Status("starting: waiting for " + name)
	s.mu.Lock()
	defer s.mu.Unlock()
	begun := time.Now()
	var timer *time.Timer
	timer = time.AfterFunc(stepShown, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timer != timer {
			return // the step has ended
		}
		took := time.Since(begun).Round(time.Second)
		s.log.Info("the start takes time", "waitingFor", name, "for", took)
		s.notifier.Status(fmt.Sprintf("starting: waiting for %s for %s", name, took))
		timer.Reset(stepRepeated)
	})
	s.timer = timer
}

// ready ends the start. status is what the service manager shows from then on.
func (s *steps) ready(status string) {
	if s == nil {
		return
	}
	s.stop()
	s.notifier.Status(status)
	s.notifier.Ready()
}

// stop ends the current step.
func (s *steps) stop() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
}

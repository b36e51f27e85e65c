package runner

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/instance"
)

// published is what goroutines other than its own can know about a machine. Any goroutine may call
// its methods.
type published struct {
	mu     sync.Mutex // guards the fields below
	status instance.Observation
	seen   bool // status is set
	pid    int  // of the supervisor; 0: none
	ended  bool // no more log lines will follow
}

// show replaces the status if it has changed, and reports whether it has.
func (p *published) show(uid string, status rikv1alpha1.InstanceStatus, sequence func() int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen && equality.Semantic.DeepEqual(p.status.Status, status) {
		return false
	}
	p.status, p.seen = instance.Observation{UID: uid, Sequence: sequence(), Status: status}, true
	return true
}

// observation returns a copy of the last status. ok is false before the first one.
func (p *published) observation() (o instance.Observation, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o = p.status
	o.Status = *o.Status.DeepCopy()
	return o, p.seen
}

// phase returns the last published phase. It is empty before the first one.
func (p *published) phase() rikv1alpha1.InstancePhase {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Status.Phase
}

// place returns the PID of the instance's supervisor and the instance's address as last published.
// The PID is 0 without a supervisor.
func (p *published) place() (supervisor int, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid, p.status.Status.Address
}

func (p *published) setSupervisor(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid = pid
}

// over reports that no more log lines will follow.
func (p *published) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

func (p *published) setOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
}

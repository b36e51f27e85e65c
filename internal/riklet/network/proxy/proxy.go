package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/netmap"
)

const (
	// DefaultInterval is how often the rules are looked at.
	DefaultInterval = 15 * time.Second
	// DefaultCoalesce is the shortest time between two changes of the rules. The
	// first after a while is made at once.
	DefaultCoalesce = 20 * time.Millisecond
	// breather times what a change took is the least time to the next, so that
	// thousands of exposed instances that come and go do not take a whole CPU.
	breather = 2
	// restful keeps looking below a twentieth of one CPU, on a machine with so many
	// rules, of whomever, that reading them takes long.
	restful = 20
	// soon is when rules that changed are looked at for the first time.
	soon = time.Second
	// DefaultDrainPeriod is how long flows stay on an endpoint that is being deleted: as long
	// as its riklet waits before the stop signal (riklet/runner DefaultDrainDelay), unless its
	// grace period is shorter than three times that.
	DefaultDrainPeriod = 3 * time.Second
	// firstRetry is how soon a change that did not succeed is tried again; the time
	// doubles up to the interval.
	firstRetry = time.Second
)

// Config is what a Proxy needs.
type Config struct {
	Logger *slog.Logger
	// Table gives what is known of the cluster, nil while nothing is. It is called
	// often, by the goroutine in Run.
	Table func() *netmap.Snapshot
	// Facts gives what is known of this node, likewise.
	Facts func() Facts
	// Changed has something to receive after what Table or Facts give has changed.
	// A channel of capacity 1 that is written to without waiting is enough.
	Changed <-chan struct{}
	// Conflicts is told of the ports that services and processes of this node both want,
	// and which processes do not have theirs, when that changed. May be nil.
	Conflicts func(all []Conflict, lost map[HostPort]bool)
	// Applied is told of each attempt to bring the rules in, nil or why it failed. May be nil.
	Applied func(error)
	// Interval, Coalesce and DrainPeriod are the defaults when zero.
	Interval, Coalesce, DrainPeriod time.Duration
}

// Validate reports everything that is missing.
func (c Config) Validate() error {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("proxy: no Logger"))
	}
	if c.Table == nil || c.Facts == nil {
		errs = append(errs, errors.New("proxy: no Table or no Facts"))
	}
	if c.Changed == nil {
		errs = append(errs, errors.New("proxy: no Changed"))
	}
	if c.Interval < 0 || c.Coalesce < 0 || c.DrainPeriod < 0 {
		errs = append(errs, errors.New("proxy: Interval, Coalesce and DrainPeriod cannot be negative"))
	}
	return errors.Join(errs...)
}

// Proxy keeps the rules of one network namespace: the one of the thread that calls
// its methods. It is not for more than one caller at a time.
type Proxy struct {
	config   Config
	keeper   *iptables.Keeper // nil until iptables was found
	other    *iptables.Tool   // the other variant, while it may hold rules of an earlier process
	localnet *localnet
	drains   drains
	drained  time.Time // when the next drain period is over; zero: nothing drains
	reserved reserved  // what services have on this node, after the last Sync
	notified []Conflict
	lost     map[HostPort]bool
	flows    uint64 // what the flows were last compared with
	changes  int    // how often the rules changed
	complain string // the last error that was logged
}

// New makes a proxy. It touches nothing yet.
func New(config Config) (*Proxy, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Interval == 0 {
		config.Interval = DefaultInterval
	}
	if config.Coalesce == 0 {
		config.Coalesce = DefaultCoalesce
	}
	if config.DrainPeriod == 0 {
		config.DrainPeriod = DefaultDrainPeriod
	}
	return &Proxy{config: config, localnet: newLocalnet(sysctls), drains: drains{}}, nil
}

// Run keeps the rules until ctx ends. The rules stay then: instances outlive the
// riklet, and so does the way to them. What fails is logged once and tried again.
func (p *Proxy) Run(ctx context.Context) error {
	retry, cost := firstRetry, time.Duration(0)
	lookAt := time.Now().Add(p.config.Interval)
	for {
		changes, begun := p.changes, time.Now()
		err := p.Sync(ctx)
		pause := max(p.config.Coalesce, breather*time.Since(begun))
		if changes != p.changes {
			lookAt = earlier(lookAt, time.Now().Add(max(soon, restful*cost)))
		}
		wait := time.Until(lookAt)
		if err != nil && ctx.Err() == nil {
			p.report(err)
			wait = min(retry, p.config.Interval)
			retry = min(2*retry, p.config.Interval)
		} else {
			p.complain, retry = "", firstRetry
		}
		if !p.drained.IsZero() {
			wait = min(wait, time.Until(p.drained))
		}
		if !sleep(ctx, pause, nil) || !sleep(ctx, wait, p.config.Changed) {
			return nil
		}
		if time.Now().Before(lookAt) {
			continue
		}
		begun = time.Now()
		p.look(ctx)
		cost = time.Since(begun)
		lookAt = time.Now().Add(max(p.config.Interval, restful*cost))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// sleep waits for the time or for early, and says whether ctx still goes on.
func sleep(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return ctx.Err() == nil
}

// report logs an error unless it is the one that was logged last.
func (p *Proxy) report(err error) {
	if text := err.Error(); text != p.complain {
		p.complain = text
		p.config.Logger.Error("the rules of the node proxy are not as they should be; it is tried again", "err", err)
	}
}

// Sync makes the rules what Table and Facts ask for, at once. Run does the same
// whenever something changed. While the node's network is not known, the rules stay as
// they are; only Remove takes them away.
func (p *Proxy) Sync(ctx context.Context) error {
	in := Input{Snapshot: p.config.Table(), Facts: p.config.Facts()}
	if !in.active() {
		return nil
	}
	err := p.sync(ctx, in)
	if p.config.Applied != nil && ctx.Err() == nil {
		p.config.Applied(err)
	}
	return err
}

// sync does what Sync is for while the network is known.
func (p *Proxy) sync(ctx context.Context, in Input) error {
	if err := p.find(ctx); err != nil {
		return err
	}
	in.Drained, p.drained = p.drains.over(in.Snapshot, time.Now(), p.config.DrainPeriod)
	in.Opened = p.localnet.plan(in.Facts.Links)
	host, atLoopback, lost := p.reserved.settle(in.Facts.Listeners)
	in.Facts.HostPorts, in.Facts.LoopbackPorts = append(host, in.Facts.HostPorts...), atLoopback
	all := fronts(in)
	done, err := p.keeper.Apply(ctx, render(in, all))
	if err != nil {
		return err
	}
	p.reserved = reservedBy(all)
	p.notify(conflicts(in, lost), lost)
	if done != (iptables.Changes{}) {
		p.changes++
		p.config.Logger.Debug("rules changed", "written", done.Written, "removed", done.Removed, "jumps", done.Moved)
	}
	// Only now: the rules keep strangers from what this opens.
	return errors.Join(p.clearOther(ctx), p.localnet.open(in.Opened), p.forget(newFlows(in, all)))
}

// notify passes on what changed of the conflicts.
func (p *Proxy) notify(all []Conflict, lost map[HostPort]bool) {
	if p.config.Conflicts == nil || slices.Equal(all, p.notified) && maps.Equal(lost, p.lost) {
		return
	}
	p.notified, p.lost = all, lost
	p.config.Conflicts(all, lost)
}

// clearOther takes away what an earlier process left in the other variant of iptables,
// once the rules are in ours.
func (p *Proxy) clearOther(ctx context.Context) error {
	if p.other == nil {
		return nil
	}
	if err := p.clear(ctx, p.other); err != nil {
		return fmt.Errorf("removing the rules that an earlier riklet left in the %s variant: %w", p.other.Variant, err)
	}
	p.other = nil
	return nil
}

// find chooses the variant of iptables, once, and reads what earlier processes noted.
func (p *Proxy) find(ctx context.Context) error {
	if p.keeper != nil {
		return nil
	}
	use, other, err := iptables.Find(ctx)
	if err != nil {
		return err
	}
	var earlier []string
	for _, tool := range []*iptables.Tool{use, other} {
		if tool == nil {
			continue
		}
		rules, err := tool.Rules(ctx, chainInput)
		if err != nil {
			return err
		}
		p.localnet.remember(rules)
		ports, err := tool.RulesBelow(ctx, chainPorts+"-", chainRefused+"-")
		if err != nil {
			return err
		}
		earlier = append(earlier, ports...)
	}
	p.reserved = reservedIn(earlier)
	p.keeper, p.other = iptables.NewKeeper(use), other
	p.config.Logger.Info("node proxy uses iptables", "variant", string(use.Variant))
	return nil
}

// look finds out whether somebody changed our rules; the next Sync repairs them.
func (p *Proxy) look(ctx context.Context) {
	if p.keeper == nil {
		return
	}
	lost, err := p.keeper.Look(ctx)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		p.report(err)
	case lost > 0:
		p.config.Logger.Warn("somebody changed the rules of the node proxy; they are put back", "chains", lost)
	}
}

// forget has the kernel forget what became stale since the last time.
func (p *Proxy) forget(f *flows) error {
	sum := f.sum() | 1 // 0: not compared yet
	if sum == p.flows {
		return nil
	}
	var err error
	if f.local, err = localAddresses(); err != nil {
		return err
	}
	n, err := f.forget()
	if err != nil {
		return err
	}
	p.flows = sum
	if n > 0 {
		p.config.Logger.Debug("flows to endpoints that are gone were removed", "flows", n)
	}
	return nil
}

// Remove takes everything of ours out of the kernel, whichever variant holds it,
// and nothing else. Again is no error; nor is a machine without iptables, which
// holds nothing.
func (p *Proxy) Remove(ctx context.Context) error {
	use, other, err := iptables.Find(ctx)
	if errors.Is(err, iptables.ErrMissing) {
		return p.localnet.restore()
	}
	if err != nil {
		return err
	}
	errs := []error{p.clear(ctx, use)}
	if other != nil {
		errs = append(errs, p.clear(ctx, other))
	}
	p.keeper, p.flows = nil, 0
	return errors.Join(append(errs, p.localnet.restore())...)
}

// clear takes our rules out of one variant and keeps what they noted.
func (p *Proxy) clear(ctx context.Context, tool *iptables.Tool) error {
	rules, err := tool.Rules(ctx, chainInput)
	if err != nil {
		return err
	}
	p.localnet.remember(rules)
	_, err = iptables.NewKeeper(tool).Apply(ctx, iptables.Ruleset{})
	return err
}

package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/riklet/network/iptables"
	"rik.dev/rik/internal/riklet/network/netmap"
)

const (
	// DefaultInterval is the time between two checks of the rules in the kernel.
	DefaultInterval = 15 * time.Second
	// DefaultCoalesce is the shortest time between two changes of the rules. After a quiet time,
	// the first change happens at once.
	DefaultCoalesce = 20 * time.Millisecond
	// syncPauseFactor limits the CPU usage: after a change, the pause is at least this many times
	// the duration of the change. Otherwise thousands of exposed instances with frequent changes
	// would use a whole CPU.
	syncPauseFactor = 2
	// checkPauseFactor limits checks to a twentieth of one CPU, on a machine with so many rules,
	// from any program, that reading them takes long.
	checkPauseFactor = 20
	// firstCheckDelay is the time between a change of the rules and their first check.
	firstCheckDelay = time.Second
	// DefaultDrainPeriod is how long flows stay on an endpoint that is being deleted. It is as
	// long as the riklet waits before the stop signal (riklet/runner DefaultDrainDelay), unless
	// the instance's grace period is shorter than three times that.
	DefaultDrainPeriod = 3 * time.Second
	// firstRetry is the delay before a failed change is retried. It doubles up to the interval.
	firstRetry = time.Second
)

// Config configures a Proxy.
type Config struct {
	Logger *slog.Logger
	// Netmap returns the current netmap, or nil if there is none. The goroutine in Run calls it
	// often.
	Netmap func() *netmap.Snapshot
	// Facts returns the facts about this node. The goroutine in Run calls it often.
	Facts func() Facts
	// Changed is readable after the results of Netmap or Facts have changed. A channel of capacity
	// 1 with non-blocking writes is sufficient.
	Changed <-chan struct{}
	// Conflicts is called when the conflicts have changed. all are the ports that both services
	// and processes of this node use. lost are the ports that processes do not have. It may be
	// nil.
	Conflicts func(all []Conflict, lost map[HostPort]bool)
	// Applied is called after each attempt to apply the rules, with nil or the error. It may be
	// nil.
	Applied func(error)
	// Created is the file with what the proxy has created in nftables, see
	// [iptables.Keeper.RecordCreated]. If it is empty, Remove leaves empty tables.
	Created string
	// Interval, Coalesce and DrainPeriod default to the package's constants.
	Interval, Coalesce, DrainPeriod time.Duration
}

// Validate reports everything that is missing.
func (c Config) Validate() error {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("proxy: Logger is required"))
	}
	if c.Netmap == nil || c.Facts == nil {
		errs = append(errs, errors.New("proxy: Netmap and Facts are required"))
	}
	if c.Changed == nil {
		errs = append(errs, errors.New("proxy: Changed is required"))
	}
	if c.Interval < 0 || c.Coalesce < 0 || c.DrainPeriod < 0 {
		errs = append(errs, errors.New("proxy: Interval, Coalesce and DrainPeriod cannot be negative"))
	}
	return errors.Join(errs...)
}

// Proxy manages the rules of one network namespace: that of the thread that calls its methods. It
// is not safe for concurrent use.
type Proxy struct {
	config      Config
	keeper      *iptables.Keeper // nil until iptables was found
	other       *iptables.Tool   // the other variant, while it may have rules of an earlier process
	localnet    *localnet
	drains      drains
	drained     time.Time // when the next drain period is over; zero: nothing drains
	reserved    reserved  // what services have on this node, after the last Sync
	notified    []Conflict
	lost        map[HostPort]bool
	flows       uint64 // the sum of the flows at the last comparison
	changes     int    // how often the rules changed
	loggedError string // the last error that was logged
}

// New returns a proxy. It changes nothing yet.
func New(config Config) (*Proxy, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.Interval = cmp.Or(config.Interval, DefaultInterval)
	config.Coalesce = cmp.Or(config.Coalesce, DefaultCoalesce)
	config.DrainPeriod = cmp.Or(config.DrainPeriod, DefaultDrainPeriod)
	return &Proxy{config: config, localnet: newLocalnet(sysctls), drains: drains{}}, nil
}

// Run keeps the rules in their desired state until ctx ends. The rules then stay, because the
// instances outlive the riklet. A failure is logged once and retried.
func (p *Proxy) Run(ctx context.Context) error {
	retry, cost := firstRetry, time.Duration(0)
	lookAt := time.Now().Add(p.config.Interval)
	for {
		changes, begun := p.changes, time.Now()
		err := p.Sync(ctx)
		quiet := max(p.config.Coalesce, syncPauseFactor*time.Since(begun))
		if changes != p.changes {
			lookAt = earlier(lookAt, time.Now().Add(max(firstCheckDelay, checkPauseFactor*cost)))
		}
		wait := time.Until(lookAt)
		if err != nil && ctx.Err() == nil {
			p.report(err)
			wait = min(retry, p.config.Interval)
			retry = min(2*retry, p.config.Interval)
		} else {
			p.loggedError, retry = "", firstRetry
		}
		if !p.drained.IsZero() {
			wait = min(wait, time.Until(p.drained))
		}
		if !pause.For(ctx, quiet) || !pause.ForOr(ctx, wait, p.config.Changed) {
			return nil
		}
		if time.Now().Before(lookAt) {
			continue
		}
		begun = time.Now()
		p.look(ctx)
		cost = time.Since(begun)
		lookAt = time.Now().Add(max(p.config.Interval, checkPauseFactor*cost))
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// report logs an error unless it equals the last one.
func (p *Proxy) report(err error) {
	if text := err.Error(); text != p.loggedError {
		p.loggedError = text
		p.config.Logger.Error("writing the rules of the node proxy failed; trying again", "err", err)
	}
}

// Sync applies the rules for Netmap and Facts at once. Run does the same whenever something has
// changed. While the node's network is not known, the rules do not change. Only Remove removes
// them.
func (p *Proxy) Sync(ctx context.Context) error {
	in := Input{Snapshot: p.config.Netmap(), Facts: p.config.Facts()}
	if !in.active() {
		return nil
	}
	err := p.sync(ctx, in)
	if p.config.Applied != nil && ctx.Err() == nil {
		p.config.Applied(err)
	}
	return err
}

// sync does the work of Sync while the network is known.
func (p *Proxy) sync(ctx context.Context, in Input) error {
	if err := p.find(ctx); err != nil {
		return err
	}
	in.Drained, p.drained = p.drains.over(in.Snapshot, time.Now(), p.config.DrainPeriod)
	in.Opened = p.localnet.plan(in.Facts.Links)
	host, atLoopback, lost := p.reserved.settle(in.Facts.Listeners)
	in.Facts.HostPorts, in.Facts.LoopbackPorts = append(host, in.Facts.HostPorts...), atLoopback
	all := servicePorts(in)
	done, err := p.keeper.Apply(ctx, render(in, all))
	if err != nil {
		return err
	}
	p.reserved = reservedBy(all)
	p.notify(conflicts(in, lost), lost)
	if done != (iptables.Changes{}) {
		p.changes++
		p.config.Logger.Debug("the rules of the node proxy changed", "written", done.Written, "removed", done.Removed, "jumps", done.Moved)
	}
	// Only now: the rules protect what this opens from unknown clients.
	return errors.Join(p.clearOther(ctx), p.localnet.open(in.Opened), p.forget(newFlows(in, all)))
}

// notify reports the conflicts if they have changed.
func (p *Proxy) notify(all []Conflict, lost map[HostPort]bool) {
	if p.config.Conflicts == nil || slices.Equal(all, p.notified) && maps.Equal(lost, p.lost) {
		return
	}
	p.notified, p.lost = all, lost
	p.config.Conflicts(all, lost)
}

// clearOther removes what an earlier process left in the other variant of iptables, once the
// rules are in the current variant.
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

// find chooses the variant of iptables, once, and reads what earlier processes recorded in their
// rules.
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
		p.localnet.readComment(rules)
		ports, err := tool.RulesBelow(ctx, chainPorts+"-", chainRefused+"-")
		if err != nil {
			return err
		}
		earlier = append(earlier, ports...)
	}
	p.reserved = reservedIn(earlier)
	p.keeper, p.other = iptables.NewKeeper(use), other
	p.keeper.RecordCreated(p.config.Created)
	p.config.Logger.Info("the node proxy uses iptables", "variant", string(use.Variant))
	return nil
}

// look checks whether another program changed rik's rules. The next Sync repairs them.
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
		p.config.Logger.Warn("another program changed the rules of the node proxy; restoring them", "chains", lost)
	}
}

// forget makes the kernel forget the flows that have become stale since the last time.
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
		p.config.Logger.Debug("removed connection tracking entries of removed endpoints", "flows", n)
	}
	return nil
}

// Remove removes everything of rik's from the kernel, in both variants, and nothing else. It is
// idempotent. It succeeds on a machine without iptables, which has no rules.
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

// clear removes rik's rules and empty tables from one variant, and remembers the links that they contain.
func (p *Proxy) clear(ctx context.Context, tool *iptables.Tool) error {
	rules, err := tool.Rules(ctx, chainInput)
	if err != nil {
		return err
	}
	p.localnet.readComment(rules)
	if _, err := iptables.NewKeeper(tool).Apply(ctx, iptables.Ruleset{}); err != nil || p.config.Created == "" {
		return err
	}
	return tool.RemoveCreated(p.config.Created)
}

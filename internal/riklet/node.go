package riklet

import (
	"context"
	"encoding/json"
	"slices"

	"golang.org/x/sync/errgroup"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/riklet/connection"
	"rik.dev/rik/internal/riklet/imagesession"
	"rik.dev/rik/internal/riklet/instance"
	"rik.dev/rik/internal/riklet/monitor"
	"rik.dev/rik/internal/rpc/schedulerv1"
)

// newScheduler returns the connection to the scheduler, with the riklet's parts as its handlers.
func (r *Riklet) newScheduler() *connection.Scheduler {
	dial := r.cfg.DialScheduler
	if dial == nil {
		dial = r.dial(func() string { return r.servers.Current().Workers })
	}
	var news <-chan struct{}
	if r.network != nil {
		news = r.network.News()
	}
	return &connection.Scheduler{
		Dial: dial, Register: r.register, Heartbeat: r.heartbeat, News: news,
		Orders: r.manager.Order, Contact: r.manager.Contact, Hold: r.manager.Hold, Outbox: r.outbox, Logger: r.cfg.Logger,
	}
}

// newMonitor returns the monitor that measures the node and its instances.
func (r *Riklet) newMonitor() *monitor.Monitor {
	reader := monitor.NewReader(r.cfg.StateDir)
	cfg := monitor.Config{
		Interval: r.cfg.MetricsInterval,
		Read:     reader.Read, DiskUsed: reader.DiskUsed, Evict: r.evict, Instances: r.measure, Logger: r.cfg.Logger,
		Report: r.controller.SetUsages,
	}
	if r.cfg.Images != nil {
		cfg.Collect = r.cfg.Images.Collect
	}
	return monitor.New(cfg)
}

// evictor is a driver whose instances write on the node's disk.
type evictor interface {
	Evict(ctx context.Context) (uid string, err error)
}

// evict ends an instance of a driver that can evict.
func (r *Riklet) evict(ctx context.Context) (string, error) {
	if e, ok := r.driver.(evictor); ok {
		return e.Evict(ctx)
	}
	return "", nil
}

// register returns the current description of the node.
func (r *Riklet) register() *schedulerv1.Register {
	facts := r.refresh()
	status, err := facts.Marshal()
	if err != nil {
		panic("programmer error: encoding a node's status: " + err.Error())
	}
	taints, err := json.Marshal(append([]rikv1alpha1.Taint{}, r.cfg.Taints...))
	if err != nil {
		panic("programmer error: encoding taints: " + err.Error())
	}
	return &schedulerv1.Register{
		NodeName: r.cfg.NodeName, MachineId: facts.Info.MachineID, BootId: facts.Info.BootID, Version: r.cfg.Version,
		Status: status, Labels: r.cfg.Labels, Taints: taints, Running: r.manager.List(), HighestTerm: r.checkpoints.Term(), RunId: r.run,
		NoNetwork: r.network == nil, Asks: true, Hold: r.manager.Hold(), Troubles: r.troubles(),
	}
}

// heartbeat returns a heartbeat. It contains images and ports only if they changed or whole is
// true.
func (r *Riklet) heartbeat(whole bool) *schedulerv1.Heartbeat {
	beat := &schedulerv1.Heartbeat{DiskPressure: r.monitor.DiskPressure()}
	beat.UsedPorts, beat.UsedPortsChanged = r.usedPorts(whole)
	beat.Troubles = r.troubles()
	if r.cfg.Images == nil {
		return beat
	}
	images := slices.Sorted(slices.Values(r.cfg.Images.References()))
	r.mu.Lock()
	defer r.mu.Unlock()
	if whole || !slices.Equal(images, r.images) {
		r.images = images
		beat.Images, beat.ImagesChanged = images, true
	}
	return beat
}

// measure returns the usage of every instance.
func (r *Riklet) measure() []monitor.Instance {
	var all []monitor.Instance
	for _, o := range r.driver.Observations() {
		if o.Status.Phase == rikv1alpha1.InstanceTerminated {
			continue
		}
		all = append(all, monitor.Instance{UID: o.UID})
	}
	r.usages(all)
	return all
}

// concurrentMeasurements bounds how many instances are measured at the same time. Thus a VMM that
// does not answer delays few others.
const concurrentMeasurements = 16

// usages measures the given instances. An instance that does not run uses nothing.
func (r *Riklet) usages(of []monitor.Instance) {
	var group errgroup.Group
	group.SetLimit(concurrentMeasurements)
	for i := range of {
		group.Go(func() error {
			if usage, err := r.driver.Usage(of[i].UID); err == nil {
				of[i].Usage = usage
			}
			return nil
		})
	}
	_ = group.Wait()
}

// resolve finds the driver and the default container for a session.
func (r *Riklet) resolve(uid string) (driver instance.Driver, container string, ok bool) {
	if !r.manager.Has(uid) {
		return nil, "", false
	}
	if names := r.manager.Info(uid).Containers; len(names) > 0 {
		container = names[0]
	}
	return r.driver, container, true
}

// imageUsers lists the instances that have not ended, with their images.
func (r *Riklet) imageUsers() (users []imagesession.User) {
	for _, o := range r.driver.Observations() {
		if o.Status.Phase.Ended() {
			continue
		}
		if info := r.manager.Info(o.UID); len(info.Images) > 0 {
			users = append(users, imagesession.User{Name: info.Namespace + "/" + info.Name, Images: info.Images})
		}
	}
	return users
}

// loadImages loads the image archives of the node. The scheduler learns about archives that were
// refused from the next heartbeat.
func (r *Riklet) loadImages(ctx context.Context) {
	trouble := r.cfg.Images.Load(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.archives = trouble
}

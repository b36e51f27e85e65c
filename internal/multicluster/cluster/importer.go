package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/crdpuller"
	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/wakeup"
)

// certainAfter is how many complete answers in a row must not contain a type before it counts as
// removed.
const certainAfter = 2

// If a cluster changes its types all the time, it is read pullBurst times in a row, and after
// that once in pullInterval. Each read transfers all of its schemas.
const (
	pullInterval = 10 * time.Second
	pullBurst    = 6
)

// settle is the delay between a change and the pull. A user who applies a set of CRDs changes
// them one after the other.
const settle = 500 * time.Millisecond

// importer imports the types of one cluster. Only its member uses it.
type importer struct {
	member   *member
	owner    metav1.OwnerReference
	puller   *crdpuller.Puller
	upstream client.Client
	objects  metadata.Interface
	// stored lists the imports of the cluster upstream, without schemas.
	stored func(ctx context.Context) ([]*apiresourcev1alpha1.APIResourceImport, error)
	logger *slog.Logger
	wake   wakeup.Signal

	// written contains the imports that are known to be up to date upstream. lacking is how often
	// in a row the type of an import was not offered. The keys of both are names of imports.
	written map[string]stamp
	lacking map[string]int
	// changing is true if the types change so often that the importer skips changes.
	changing bool
}

// stamp is the hash of a written import, and the generation that it got.
type stamp struct {
	hash       [sha256.Size]byte
	generation int64
}

func (c *Controller) newImporter(cluster *workloadv1alpha1.Cluster, m *member) (*importer, error) {
	puller, err := crdpuller.New(crdpuller.Config{Rest: m.downstream, EveryVersion: true, Logger: m.logger})
	if err != nil {
		return nil, err
	}
	return &importer{
		member: m, puller: puller, upstream: c.client, objects: c.objects, logger: m.logger,
		owner: *metav1.NewControllerRef(cluster, workloadv1alpha1.SchemeGroupVersion.WithKind("Cluster")),
		stored: func(ctx context.Context) ([]*apiresourcev1alpha1.APIResourceImport, error) {
			return c.importsOf(ctx, cluster.Name)
		},
		wake:    wakeup.New(),
		written: map[string]stamp{}, lacking: map[string]int{},
	}, nil
}

// requestPull requests a pull soon.
func (i *importer) requestPull() { i.wake.Wake() }

// run pulls when the cluster's types change, when requestPull is called, and at intervals, until ctx ends.
func (i *importer) run(ctx context.Context) { i.rounds(ctx, i.puller.Changes(ctx), i.round) }

// rounds calls round, which returns when the next round is due without a change.
func (i *importer) rounds(ctx context.Context, changes <-chan struct{}, round func(context.Context) time.Duration) {
	limit := flowcontrol.NewTokenBucketRateLimiter(float32(time.Second)/float32(pullInterval), pullBurst)
	for {
		again := round(ctx)
		if ctx.Err() != nil {
			return
		}
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case _, open := <-changes:
			if !open {
				changes = nil // the cluster does not report changes, so the timer must do
			}
			pause.For(ctx, settle)
			i.wait(ctx, limit)
		case <-i.wake:
		case <-timer.C:
			i.changing = false
		}
		timer.Stop()
	}
}

// wait waits until the rate limit allows another round.
func (i *importer) wait(ctx context.Context, limit flowcontrol.RateLimiter) {
	if limit.TryAccept() {
		i.changing = false
		return
	}
	if !i.changing {
		i.logger.Warn("the cluster's types change all the time; they are read less often", "every", pullInterval)
	}
	i.changing = true
	_ = limit.Wait(ctx) // the only error is that the context has ended
}

// round pulls once, writes the result, and returns when to pull again.
func (i *importer) round(ctx context.Context) time.Duration {
	names, _ := i.member.wanted()
	pulled, err := i.pull(ctx, names)
	if ctx.Err() != nil {
		return 0
	}
	found := imported{done: true}
	var unsure bool
	if err != nil {
		found.failure = i.member.errorText(err)
	} else {
		found, unsure = i.take(ctx, names, pulled)
	}
	if i.changing {
		found.troubles = append(found.troubles, fmt.Sprintf("the cluster's types change all the time; they are read every %s", pullInterval))
	}
	i.member.report(func(seen *observation) bool {
		isNew := !seen.imported.equal(found)
		seen.imported = found
		return isNew
	})
	poll := i.member.config.PollInterval
	if unsure {
		return min(poll, i.member.config.ProbeInterval) // check again whether a type is gone
	}
	return poll
}

// pull converts a panic into an error. An unexpected schema must not stop the work on all other
// clusters.
func (i *importer) pull(ctx context.Context, names []string) (pulled *crdpuller.Result, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
			i.logger.Error("pulling the types of a cluster", "err", i.member.errorText(err), "stack", string(debug.Stack()))
		}
	}()
	return i.puller.Pull(ctx, names...)
}

// take writes what was pulled, and deletes the imports of types that are gone.
func (i *importer) take(ctx context.Context, names []string, pulled *crdpuller.Result) (found imported, unsure bool) {
	found = imported{done: true}
	stored, err := i.stored(ctx)
	if err != nil {
		found.failure = i.member.errorText(err)
		return found, false
	}
	for _, crd := range pulled.CRDs {
		if err := i.write(ctx, crd, stored); err != nil {
			found.troubles = append(found.troubles, i.member.errorText(fmt.Errorf("%s: %w", crd.Name, err)))
			continue
		}
		found.types++
	}
	for _, p := range pulled.Problems {
		found.troubles = append(found.troubles, i.member.errorText(fmt.Errorf("%s: %w", p.Resource.GroupResource(), p.Err)))
	}
	for _, gv := range pulled.Unknown {
		found.troubles = append(found.troubles, fmt.Sprintf("the cluster did not return the types of %s", gv))
	}
	kept, unsure := i.takeBack(ctx, missing(stored, names, pulled))
	found.troubles = append(found.troubles, kept...)
	slices.Sort(found.troubles)
	return found, unsure
}

// write creates or updates the imports of one type. In an existing import it changes only the
// cluster's fields, not those that a user may set.
func (i *importer) write(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, stored []*apiresourcev1alpha1.APIResourceImport) error {
	imports, err := importsFrom(i.member.name, i.owner, crd)
	if err != nil {
		return err
	}
	for _, wanted := range imports {
		delete(i.lacking, wanted.Name)
		hash, err := hashOf(wanted)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(stored, func(s *apiresourcev1alpha1.APIResourceImport) bool { return s.Name == wanted.Name })
		if at >= 0 && i.written[wanted.Name] == (stamp{hash, stored[at].Generation}) && metav1.IsControlledBy(stored[at], &metav1.ObjectMeta{UID: i.owner.UID}) {
			continue
		}
		generation, err := i.put(ctx, wanted)
		if err != nil {
			delete(i.written, wanted.Name)
			return err
		}
		i.written[wanted.Name] = stamp{hash, generation}
	}
	return nil
}

func hashOf(i *apiresourcev1alpha1.APIResourceImport) ([sha256.Size]byte, error) {
	data, err := json.Marshal([]any{i.Spec, i.Annotations})
	return sha256.Sum256(data), err
}

// put creates or updates an import, and returns its generation.
func (i *importer) put(ctx context.Context, wanted *apiresourcev1alpha1.APIResourceImport) (int64, error) {
	present := &apiresourcev1alpha1.APIResourceImport{}
	err := i.upstream.Get(ctx, client.ObjectKeyFromObject(wanted), present)
	if apierrors.IsNotFound(err) {
		made := wanted.DeepCopy()
		err := i.upstream.Create(ctx, made, client.FieldOwner(fieldManager))
		return made.Generation, err
	}
	if err != nil {
		return 0, err
	}
	if present.DeletionTimestamp != nil {
		return 0, fmt.Errorf("the import is being deleted; it is made again after that")
	}
	mended := present.DeepCopy()
	mended.Spec.CommonAPIResourceSpec = wanted.Spec.CommonAPIResourceSpec
	mended.Spec.Location = wanted.Spec.Location
	mended.OwnerReferences = wanted.OwnerReferences
	metav1.SetMetaDataAnnotation(&mended.ObjectMeta, apiresourcev1alpha1.APIVersionAnnotation, wanted.Annotations[apiresourcev1alpha1.APIVersionAnnotation])
	delete(mended.Annotations, apiresourcev1alpha1.VersionsAnnotation)
	if left := wanted.Annotations[apiresourcev1alpha1.VersionsAnnotation]; left != "" {
		mended.Annotations[apiresourcev1alpha1.VersionsAnnotation] = left
	}
	if equality.Semantic.DeepEqual(mended, present) {
		return present.Generation, nil
	}
	err = i.upstream.Update(ctx, mended, client.FieldOwner(fieldManager))
	return mended.Generation, err
}

// takeBack deletes the imports whose types are gone. It returns the imports that it does not
// delete, with the reasons. unsure is true while a type has not been missing often enough.
func (i *importer) takeBack(ctx context.Context, gone []*apiresourcev1alpha1.APIResourceImport) (kept []string, unsure bool) {
	lacking := map[string]int{}
	for _, g := range gone {
		lacking[g.Name] = i.lacking[g.Name] + 1
		if lacking[g.Name] < certainAfter {
			unsure = true
			continue
		}
		why, err := i.reasonToKeep(ctx, g)
		if err == nil && why == "" {
			err = i.remove(ctx, g)
		}
		switch name := g.Spec.GVR().GroupResource(); {
		case err != nil:
			kept = append(kept, i.member.errorText(fmt.Errorf("the import of %s stays, although the cluster no longer serves the type: %w", name, err)))
		case why != "":
			kept = append(kept, fmt.Sprintf("the import of %s stays, although the cluster no longer serves the type: %s", name, why))
		}
	}
	i.lacking = lacking
	return kept, unsure
}

func (i *importer) remove(ctx context.Context, gone *apiresourcev1alpha1.APIResourceImport) error {
	err := i.upstream.Delete(ctx, &apiresourcev1alpha1.APIResourceImport{ObjectMeta: metav1.ObjectMeta{Name: gone.Name}}, client.Preconditions{UID: &gone.UID})
	if client.IgnoreNotFound(err) == nil {
		delete(i.written, gone.Name)
		i.logger.Info("a type is gone from the cluster", "type", gone.Spec.GVR().String())
		return nil
	}
	return err
}

// reasonToKeep returns why an import stays. Either its version is still served, although the
// cluster prefers another one, or objects of the type are stored upstream.
func (i *importer) reasonToKeep(ctx context.Context, gone *apiresourcev1alpha1.APIResourceImport) (string, error) {
	gvr := gone.Spec.GVR()
	offered, end, err := i.member.discovery(ctx)
	if err != nil {
		return "", err
	}
	defer end()
	served, err := offered.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("asking the cluster about %s: %w", gvr.GroupVersion(), err)
	}
	if err == nil && slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == gvr.Resource }) {
		return fmt.Sprintf("it serves the version %s, and prefers another", gvr.Version), nil
	}
	some, err := i.hasObjects(ctx, gvr)
	switch {
	case err != nil:
		return "", fmt.Errorf("looking for stored objects: %w", err)
	case some:
		return "objects of it are stored", nil
	}
	return "", nil
}

// hasObjects reports whether objects of a type are stored upstream, in any version. A type that
// has a CRD but is not served may have some.
func (i *importer) hasObjects(ctx context.Context, gvr schema.GroupVersionResource) (bool, error) {
	list, err := i.objects.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil {
		return len(list.Items) > 0, nil
	}
	if !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return false, err
	}
	err = i.upstream.Get(ctx, client.ObjectKey{Name: gvr.GroupResource().String()}, &apiextensionsv1.CustomResourceDefinition{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

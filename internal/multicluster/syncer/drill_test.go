package syncer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// churn creates, changes, moves and deletes objects, and records what upstream wants.
type churn struct {
	p *pair
	// wanted is the version of each object that must be downstream. stays contains the UIDs of
	// the objects that were neither deleted nor moved.
	wanted map[string]string
	stays  map[string]types.UID
	steps  int
}

func (c *churn) step() {
	c.steps++
	version := fmt.Sprint(c.steps)
	name, choice := fmt.Sprintf("x%02d", rand.IntN(30)), rand.IntN(5)
	objects := c.p.objects.Resource(configMaps).Namespace("team")
	var present *unstructured.Unstructured
	c.insist("reading "+name, func(ctx context.Context) (err error) {
		if present, err = objects.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			present, err = nil, nil
		}
		return err
	})
	merge := func(patch string) {
		c.insist("changing "+name, func(ctx context.Context) error {
			_, err := objects.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		})
	}
	switch {
	case present == nil:
		c.wanted[name] = version
		c.insist("making "+name, func(ctx context.Context) error {
			_, err := objects.Create(ctx, configMap("team", name, c.p.cluster, map[string]string{"v": version}), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // an earlier attempt that seemed to fail
			}
			return err
		})
	case present.GetDeletionTimestamp() != nil: // waits for the syncer
	case choice == 0:
		delete(c.wanted, name)
		c.insist("deleting "+name, func(ctx context.Context) error {
			err := objects.Delete(ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	case choice == 1:
		delete(c.wanted, name)
		merge(`{"metadata":{"labels":{"workloads.kcp.dev/cluster":null}}}`)
	default:
		c.wanted[name] = version
		merge(fmt.Sprintf(`{"data":{"v":"%s"},"metadata":{"labels":{"workloads.kcp.dev/cluster":"%s"}}}`, version, c.p.cluster))
	}
}

// insist repeats a request until it succeeds. A server on a busy machine may let one time out,
// which does not mean that the syncer failed.
func (c *churn) insist(what string, request func(context.Context) error) {
	c.p.t.Helper()
	poll.Until(c.p.t, kube.Timeout, what, request)
}

// rest waits until downstream has exactly the objects that upstream wants.
func (c *churn) rest() {
	t, p := c.p.t, c.p
	t.Helper()
	poll.Until(t, kube.Timeout, "downstream is what upstream says", func(ctx context.Context) error {
		list, err := p.down.Resource(configMaps).Namespace(p.there).List(ctx, metav1.ListOptions{LabelSelector: workloadv1alpha1.ClusterLabel})
		if err != nil {
			return err
		}
		got := map[string]string{}
		for _, o := range list.Items {
			v, _ := o.Object["data"].(map[string]any)
			got[o.GetName()] = fmt.Sprint(v["v"])
		}
		if fmt.Sprint(got) != fmt.Sprint(c.wanted) {
			return fmt.Errorf("there is %v, wanted is %v%s", got, c.wanted, c.differing(ctx, got))
		}
		return nil
	})
	for name, uid := range c.stays {
		if o := has(t, p.down, configMaps, p.there, name, anyhow); o.GetUID() != uid {
			t.Errorf("%s was deleted, but not upstream", name)
		}
	}
}

// differing returns the first object that differs, with both sides and the problem that the
// syncer reports.
func (c *churn) differing(ctx context.Context, got map[string]string) string {
	for name, version := range c.wanted {
		if got[name] == version {
			continue
		}
		text := ""
		for side, objects := range map[string]dynamic.ResourceInterface{
			"upstream": c.p.objects.Resource(configMaps).Namespace("team"), "downstream": c.p.down.Resource(configMaps).Namespace(c.p.there),
		} {
			o, err := objects.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				text += fmt.Sprintf("\n%s: %v", side, err)
				continue
			}
			o.SetManagedFields(nil)
			text += fmt.Sprintf("\n%s: %v", side, o.Object)
		}
		return text
	}
	return ""
}

func startChurn(t *testing.T, cluster string) *churn {
	c := &churn{p: startPair(t, cluster), wanted: map[string]string{}, stays: map[string]types.UID{}}
	for i := range 5 {
		name := fmt.Sprintf("stays%d", i)
		create(t, c.p.objects, configMaps, configMap("team", name, cluster, map[string]string{"v": "0"}))
		c.stays[name] = has(t, c.p.down, configMaps, c.p.there, name, anyhow).GetUID()
		c.wanted[name] = "0"
	}
	return c
}

// TestSyncerStoppedFiftyTimes tests a syncer that is stopped 50 times in the middle of its work.
// It loses nothing, deletes nothing by mistake and restores nothing that was deleted.
func TestSyncerStoppedFiftyTimes(t *testing.T) {
	c := startChurn(t, "drill")
	for range 50 {
		for range 1 + rand.IntN(8) {
			c.step()
		}
		if err := c.p.stop(); err != nil {
			t.Fatalf("Run() = %v", err)
		}
		for range rand.IntN(3) {
			c.step()
		}
		c.p.running = c.p.sync(c.p.cluster, c.p.kube.Rest())
	}
	c.rest()
}

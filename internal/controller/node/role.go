package node

import (
	"context"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// roleInterval is the interval of checks whether the server's own node has joined.
const roleInterval = 500 * time.Millisecond

// MarkControlPlane labels the node on the control plane's machine with the role control-plane, as
// soon as the node has joined. A node must not set a role itself, so the role is not among the
// labels that the node sends.
func MarkControlPlane(ctx context.Context, c client.Client, name string, log *slog.Logger) {
	role := rikv1alpha1.LabelRolePrefix + "control-plane"
	_ = wait.PollUntilContextCancel(ctx, roleInterval, true, func(ctx context.Context) (bool, error) {
		n := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+role+`":""}}}`))
		err := c.Patch(ctx, n, patch)
		if err != nil {
			log.Debug("labeling the server's own node failed; trying again", "node", name, "err", err)
		}
		return err == nil, nil
	})
}

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// Environment variables of a child process of the drill. The child is a controller that only
// writes, as fast as it can, while it is active.
const (
	EnvDrillConfig    = "RIK_TEST_DRILL_CONFIG"
	EnvDrillNamespace = "RIK_TEST_DRILL_NAMESPACE"
	DrillObject       = "drill"
)

func IsDrillChild() bool { return os.Getenv(EnvDrillConfig) != "" }

// DrillChild runs until it receives SIGTERM.
func DrillChild() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := drillChild(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func drillChild(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(EnvDrillConfig))
	if err != nil {
		return err
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: rikv1alpha1.UserController, Groups: []string{rikv1alpha1.GroupAdministrators}}
	c, err := New(Config{
		RestConfig: config, Identity: strconv.Itoa(os.Getpid()), LeaderElection: true, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		SchedulerDial: func(context.Context) (*grpc.ClientConn, error) { return nil, errors.New("there is none") },
	})
	if err != nil {
		return err
	}
	if err := ensureNamespace(ctx, c.client, Namespace); err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := elect(ctx, c.clients, c.leads, c.config.Identity, c.timing(), func(string) {}, func(ctx context.Context, number int64) error {
			c.leads.begin(number, true)
			defer c.leads.end()
			if err := c.establish(ctx); err != nil {
				return err
			}
			fmt.Println("active", number)
			return write(ctx, c, number)
		})
		fmt.Println("passive", err)
	}
	return nil
}

// write continues although writes fail: only the lease and the datastore may stop it.
func write(ctx context.Context, c *Controller, number int64) error {
	for i := 0; ctx.Err() == nil; i++ {
		o := &corev1.ConfigMap{}
		if err := c.client.Get(ctx, types.NamespacedName{Namespace: os.Getenv(EnvDrillNamespace), Name: DrillObject}, o); err != nil {
			continue
		}
		o.ResourceVersion = "" // the last write wins
		o.Data = map[string]string{"term": strconv.FormatInt(number, 10), "n": strconv.Itoa(i)}
		_ = c.acting.Update(ctx, o)
	}
	return ctx.Err()
}

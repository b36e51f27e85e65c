package create

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/waiting"
)

const (
	// tenantPoll is the interval between two reads of a new tenant.
	tenantPoll = 100 * time.Millisecond
	// tenantTimeout is much longer than the controller needs.
	tenantTimeout = 30 * time.Second

	// tenantReady is the condition of a tenant that its users can use.
	tenantReady = "Ready"
	// tenantTaken is its reason if the namespace belongs to another owner.
	tenantTaken = "NamespaceTaken"
)

// tenantRequest holds the arguments of "create tenant".
type tenantRequest struct {
	name    string
	users   []string
	wait    bool
	timeout time.Duration
	output  string
}

// tenantResult is the result of "create tenant" for scripts.
type tenantResult struct {
	Tenant  string `json:"tenant"`
	Created bool   `json:"created"`
	// Ready is false with --wait=false.
	Ready bool `json:"ready"`

	printer.Outcome `json:",inline"`
}

func (t *tool) createTenant() *cobra.Command {
	var r tenantRequest
	cmd := &cobra.Command{
		Use:     "tenant NAME",
		Aliases: []string{"tenants", "ten"},
		Short:   "Create a tenant with a namespace of its own",
		Long: `Create a tenant with a namespace of its own, and wait until the namespace exists
and the users have permissions in it.`,
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if r.timeout <= 0 {
				return cmdline.Errorf(cmd, "--timeout must be more than 0; --wait=false does not wait")
			}
			if err := printer.CheckOutput(cmd, r.output); err != nil {
				return err
			}
			r.name = given[0]
			result := tenantResult{Tenant: r.name}
			err := t.runCreateTenant(cmd.Context(), r, &result)
			return printer.Result(t.Streams.Out, r.output, &result, &result.Outcome, err)
		},
	}
	cmd.Flags().StringSliceVar(&r.users, "user", nil, "user with all permissions in the namespace; may be repeated")
	printer.AddOutput(cmd, &r.output)
	cmd.Flags().BoolVar(&r.wait, "wait", true, "wait until the tenant can be used")
	cmd.Flags().DurationVar(&r.timeout, "timeout", tenantTimeout, "timeout of the wait; the exit code is then 5")
	return cmd
}

func (t *tool) runCreateTenant(ctx context.Context, r tenantRequest, result *tenantResult) error {
	tenant := &rikv1alpha1.Tenant{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
	for _, u := range r.users {
		tenant.Spec.Users = append(tenant.Spec.Users, rikv1alpha1.TenantUser{Name: u})
	}
	if err := t.create(ctx, printer.Steps(t.Streams, r.output), tenant, "tenant"); err != nil {
		return err
	}
	result.Created = true
	if !r.wait {
		return nil
	}
	c, err := t.Client()
	if err != nil {
		return err
	}
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
	defer line.End()
	err = waitForTenant(ctx, c, r, line.Set)
	result.Ready = err == nil
	return err
}

// waitForTenant waits until the namespace and the users' permissions exist. Before that, the
// server would refuse the users' requests.
func waitForTenant(ctx context.Context, c client.Client, r tenantRequest, waits func(waiting.State)) error {
	seen := unseen
	err := wait.PollUntilContextTimeout(ctx, tenantPoll, r.timeout, true, func(ctx context.Context) (bool, error) {
		tenant := &rikv1alpha1.Tenant{}
		if err := c.Get(ctx, client.ObjectKey{Name: r.name}, tenant); err != nil {
			return false, err
		}
		var done bool
		var err error
		done, seen, err = validateTenant(tenant)
		waits(waiting.State{For: fmt.Sprintf("tenant %s: %s", r.name, seen)})
		return done, err
	})
	if err == nil {
		return nil
	}
	next := fmt.Sprintf("the tenant exists, and the controller creates its namespace later; \"rikctl describe tenant %s\" shows its state", r.name)
	switch {
	case ctx.Err() != nil:
		return err
	case wait.Interrupted(err) || errors.Is(err, context.DeadlineExceeded):
		return clierror.WithNext(clierror.TimeoutError{What: fmt.Sprintf("the namespace and the permissions of tenant %s: %s", r.name, seen)}, next)
	case apierrors.IsAlreadyExists(err):
		return clierror.WithNext(err, fmt.Sprintf("run \"rikctl delete tenant %s\", and create a tenant with another name", r.name))
	}
	return err
}

// unseen describes a tenant without the controller's condition.
const unseen = "the controller has not reported on the tenant"

// validateTenant reports whether a tenant is ready, with the controller's message. An error
// means that waiting is useless.
func validateTenant(tenant *rikv1alpha1.Tenant) (done bool, said string, err error) {
	ready := meta.FindStatusCondition(tenant.Status.Conditions, tenantReady)
	switch {
	case ready == nil:
		return false, unseen, nil
	case ready.Reason == tenantTaken:
		return false, ready.Message, fmt.Errorf("creating the namespace of tenant %s: another owner has it: %w",
			tenant.Name, apierrors.NewAlreadyExists(corev1.Resource("namespaces"), tenant.Name))
	}
	return ready.Status == metav1.ConditionTrue, ready.Message, nil
}

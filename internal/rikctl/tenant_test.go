package rikctl

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/testkit/served"
)

// report writes the conditions of a tenant as the controller would. It waits until the tenant
// exists.
func (s site) report(ctx context.Context, name string, conditions ...metav1.Condition) error {
	for _, condition := range conditions {
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, served.Timeout, true, func(ctx context.Context) (bool, error) {
			tenant := &rikv1alpha1.Tenant{}
			if err := s.c.Get(ctx, client.ObjectKey{Name: name}, tenant); err != nil {
				return false, client.IgnoreNotFound(err)
			}
			meta.SetStatusCondition(&tenant.Status.Conditions, condition)
			return true, s.c.Status().Update(ctx, tenant)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func TestServerCreateTenantWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	notYet := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NotMade", Message: "the datastore is slow"}
	made := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Made", Message: "made"}
	taken := metav1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Reason: "NamespaceTaken", Message: "taken"}
	for name, tc := range map[string]struct {
		conditions []metav1.Condition
		timeout    string
		code       int
		words      []string
	}{
		"made":    {[]metav1.Condition{notYet, made}, served.Timeout.String(), clierror.ExitOK, []string{"created"}},
		"taken":   {[]metav1.Condition{taken}, served.Timeout.String(), clierror.ExitConflict, []string{"already exists", "next:", "with another name"}},
		"nothing": {nil, "1s", clierror.ExitUnreachable, []string{"timed out", "the controller has not reported on the tenant", "describe tenant"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tenant := s.namespace + "-" + name
			reported := make(chan error, 1)
			go func() { reported <- s.report(t.Context(), tenant, tc.conditions...) }()
			s.do(t, "create", "tenant", tenant, "--user", "ada", "--timeout", tc.timeout).check(t, tc.code, tc.words...)
			if err := <-reported; err != nil {
				t.Error(err)
			}
		})
	}
}

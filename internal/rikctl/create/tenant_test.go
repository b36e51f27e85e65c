package create

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
)

func TestValidateTenant(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		condition metav1.Condition
		done      bool
		said      string
		code      int
	}{
		"nothing yet": {metav1.Condition{Type: "Other", Status: metav1.ConditionTrue}, false, unseen, clierror.ExitOK},
		"not made":    {metav1.Condition{Type: tenantReady, Status: metav1.ConditionFalse, Reason: "NotMade", Message: "slow"}, false, "slow", clierror.ExitOK},
		"made":        {metav1.Condition{Type: tenantReady, Status: metav1.ConditionTrue, Message: "made"}, true, "made", clierror.ExitOK},
		"taken":       {metav1.Condition{Type: tenantReady, Status: metav1.ConditionFalse, Reason: tenantTaken, Message: "taken"}, false, "taken", clierror.ExitConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done, said, err := validateTenant(&rikv1alpha1.Tenant{Status: rikv1alpha1.TenantStatus{Conditions: []metav1.Condition{tc.condition}}})
			code := clierror.ExitOK
			if err != nil {
				code = clierror.OutcomeOf(err, "").Code
			}
			if done != tc.done || said != tc.said || code != tc.code {
				t.Errorf("judgeTenant = %v, %q, %v", done, said, err)
			}
		})
	}
}

package rikctl

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestValidateTenant(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		condition metav1.Condition
		done      bool
		said      string
		code      int
	}{
		"nothing yet": {metav1.Condition{Type: "Other", Status: metav1.ConditionTrue}, false, unseen, ExitOK},
		"not made":    {metav1.Condition{Type: tenantReady, Status: metav1.ConditionFalse, Reason: "NotMade", Message: "slow"}, false, "slow", ExitOK},
		"made":        {metav1.Condition{Type: tenantReady, Status: metav1.ConditionTrue, Message: "made"}, true, "made", ExitOK},
		"taken":       {metav1.Condition{Type: tenantReady, Status: metav1.ConditionFalse, Reason: tenantTaken, Message: "taken"}, false, "taken", ExitConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done, said, err := validateTenant(&rikv1alpha1.Tenant{Status: rikv1alpha1.TenantStatus{Conditions: []metav1.Condition{tc.condition}}})
			code := ExitOK
			if err != nil {
				code = validate(err, "").code
			}
			if done != tc.done || said != tc.said || code != tc.code {
				t.Errorf("judgeTenant = %v, %q, %v", done, said, err)
			}
		})
	}
}

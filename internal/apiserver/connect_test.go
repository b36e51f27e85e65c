package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

// TestConnectionsUnderAPolicyForEverything: an admission policy for all resources, as audit
// tools install it, does not break connections to an instance. Each kind of connection calls
// admission with its own object.
func TestConnectionsUnderAPolicyForEverything(t *testing.T) {
	t.Parallel()
	s := apitest.Start(t)
	fail := admissionregistrationv1.Fail
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
				},
			}}},
			// One name is refused. The test uses it to detect that the policy is in force.
			Validations: []admissionregistrationv1.Validation{{Expression: "request.name != 'refused'"}},
		},
	}
	policies := s.Client.AdmissionregistrationV1()
	if _, err := policies.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "everything", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	if _, err := policies.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, apitest.Timeout, "the policy is in force", func(ctx context.Context) error {
		_, err := s.Client.CoreV1().ConfigMaps("default").Create(ctx, configMap("refused"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) {
			return nil
		}
		return errors.Join(fmt.Errorf("a configmap is not refused"), err)
	})
	for subresource, verb := range map[string]string{
		"log": "GET", "exec?command=true&stdout=true": "GET", "portforward?port=80": "GET", "suspend": "POST", "resume": "POST",
	} {
		for _, name := range []string{"nosuch", "refused"} {
			path := "/apis/rik.dev/v1alpha1/namespaces/default/instances/" + name + "/" + subresource
			answer := s.Client.Discovery().RESTClient().Verb(verb).RequestURI(path).Do(t.Context())
			var code int
			answer.StatusCode(&code)
			err := answer.Error()
			if err == nil || apierrors.IsInternalError(err) || code >= 500 && code != 503 || strings.Contains(err.Error(), "convert") {
				t.Errorf("%s %s = %d, %v", verb, path, code, err)
			}
			if refused := err != nil && strings.Contains(err.Error(), "everything"); refused != (name == "refused") {
				t.Errorf("%s %s = %v: the policy's refusal is %v", verb, path, err, refused)
			}
		}
	}
}

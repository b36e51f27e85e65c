package storage

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// Loss says what a change of a CRD would take from an object that is stored; empty means
// nothing. The CRD that comes next is nil if it is deleted. The API server asks it again
// what the controller asked, while no object is written.
func Loss(ctx context.Context, client dynamic.Interface, before, next *apiextensionsv1.CustomResourceDefinition) (string, error) {
	questions, err := plan.Harm(before, next)
	if err != nil || len(questions) == 0 {
		return "", err
	}
	objects, err := Of(client, before)
	if err != nil {
		return "", err
	}
	answers, err := plan.Answer(ctx, questions, objects.All(ctx))
	if err != nil {
		return "", err
	}
	for _, q := range questions {
		if obstacle := answers[q.Key]; obstacle != nil {
			return fmt.Sprintf("%s: %s", obstacle.Path, obstacle.Reason), nil
		}
	}
	return "", nil
}

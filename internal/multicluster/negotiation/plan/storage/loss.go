package storage

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// Loss returns what a change of a CRD would remove from a stored object. It is empty if that is
// nothing. next is nil if the CRD is deleted. The API server repeats the controller's questions
// in this way, while no object is written.
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

package storage

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/client-go/dynamic"

	"rik.dev/rik/internal/multicluster/negotiation/plan"
)

// maxRounds limits the rounds of questions. Each import of a type can cause one, and so can a
// version that is new or being removed.
const maxRounds = 1000

// Decide calls decide, which is plan.Decide or plan.Preview, and answers its questions from the
// stored objects until there are no more questions. It adds the answers to the state.
func Decide(ctx context.Context, client dynamic.Interface, state *plan.State, decide func(plan.State) (*plan.Plan, error)) (*plan.Plan, error) {
	if state.Answers == nil {
		state.Answers = plan.Answers{}
	}
	for range maxRounds {
		p, err := decide(*state)
		if err != nil || len(p.Ask) == 0 {
			return p, err
		}
		objects, err := Of(client, state.CRD)
		if err != nil {
			return nil, err
		}
		answers, err := plan.Answer(ctx, p.Ask, objects.All(ctx))
		if err != nil {
			return nil, err
		}
		maps.Copy(state.Answers, answers)
	}
	return nil, fmt.Errorf("programmer error: %d rounds of questions were not enough", maxRounds)
}

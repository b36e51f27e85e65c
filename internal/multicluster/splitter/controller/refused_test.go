package controller_test

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// TestRefusedRootMoves tests that a Job which its cluster refuses goes to another cluster. If
// that cluster refuses it too, it stays there, and its status reports this. When the cause is
// fixed, the cluster accepts it.
func TestRefusedRootMoves(t *testing.T) {
	s := jobSite(t, "a", "b")
	s.job("root", "", time.Hour)
	leaf := func(name string) {
		s.Helper()
		s.eventually("the leaf is in "+name, func(ctx context.Context) error {
			o, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf("root", name), metav1.GetOptions{})
			if err == nil && o.GetDeletionTimestamp() != nil {
				err = errors.New("it is being deleted")
			}
			return err
		})
	}
	says := func(name string, problem any) {
		s.Helper()
		s.merge(s.resource, s.namespace, s.leaf("root", name), map[string]any{"metadata": map[string]any{"annotations": map[string]any{
			workloadv1alpha1.ProblemAnnotationPrefix + s.cluster(name): problem,
		}}})
	}
	leaf("a")
	says("a", "Refused: exceeded quota")
	leaf("b")
	s.eventually("the leaf for a is gone", func(ctx context.Context) error {
		_, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, s.leaf("root", "a"), metav1.GetOptions{})
		if err == nil {
			err = errors.New("it is there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	says("b", "Refused: a policy forbids it")
	s.says("root", "Progressing", "False", "RefusedEverywhere")
	leaf("b")
	says("b", nil)
	s.eventually("the condition is gone", func(ctx context.Context) error {
		o, err := s.objects.Resource(s.resource).Namespace(s.namespace).Get(ctx, "root", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _ := o.Object["status"].(map[string]any)
		if conditions, _ := status["conditions"].([]any); len(conditions) > 0 {
			return errors.New("it is there")
		}
		return nil
	})
}

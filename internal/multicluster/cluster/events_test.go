package cluster_test

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
)

// event is the part of an event that users see.
type event struct{ Type, Reason, Message string }

// events returns the events about a Cluster, by reason.
func (s *site) events(ctx context.Context, name string) (map[string]event, error) {
	list, err := s.kcp.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Cluster,involvedObject.name=" + name})
	if err != nil {
		return nil, err
	}
	found := map[string]event{}
	for _, e := range list.Items {
		found[e.Reason] = event{e.Type, e.Reason, e.Message}
	}
	return found, nil
}

// awaitEvent waits for an event about a Cluster and returns its message.
func (s *site) awaitEvent(t *testing.T, name, kind, reason string) string {
	t.Helper()
	var message string
	poll.Until(t, kube.Timeout, fmt.Sprintf("there is the event %s %s about %s", kind, reason, name), func(ctx context.Context) error {
		found, err := s.events(ctx, name)
		if err != nil {
			return err
		}
		if found[reason].Type != kind || found[reason].Message == "" {
			return fmt.Errorf("the events are %v", found)
		}
		message = found[reason].Message
		return nil
	})
	return message
}

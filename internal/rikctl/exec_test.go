package rikctl

import (
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

func TestExecQuery(t *testing.T) {
	t.Parallel()
	query, err := parameters.EncodeParameters(&rikv1alpha1.InstanceExecOptions{Command: []string{"ls", "-l"}, Stdout: true, Container: "web"},
		rikv1alpha1.SchemeGroupVersion)
	if err != nil || query.Encode() != "command=ls&command=-l&container=web&stdout=true" {
		t.Errorf("query = %q, %v", query.Encode(), err)
	}
}

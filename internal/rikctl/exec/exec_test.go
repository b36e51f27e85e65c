package exec

import (
	"testing"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/scheme"
)

func TestExecQuery(t *testing.T) {
	t.Parallel()
	query, err := scheme.ParameterCodec.EncodeParameters(&rikv1alpha1.InstanceExecOptions{Command: []string{"ls", "-l"}, Stdout: true, Container: "web"},
		rikv1alpha1.SchemeGroupVersion)
	if err != nil || query.Encode() != "command=ls&command=-l&container=web&stdout=true" {
		t.Errorf("query = %q, %v", query.Encode(), err)
	}
}

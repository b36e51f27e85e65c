package rikctl

import (
	"strings"
	"testing"
)

func TestPortableTakesOneContextWhole(t *testing.T) {
	t.Parallel()
	data, err := portable(clusterFile(t, newMachine(t)), "west")
	if err != nil {
		t.Fatal(err)
	}
	if text := string(data); !strings.Contains(text, clusterCanary) || strings.Contains(text, "east") || strings.Contains(text, "tokenFile") {
		t.Errorf("portable = %s", text)
	}
}

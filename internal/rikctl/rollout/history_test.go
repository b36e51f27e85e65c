package rollout

import (
	"bytes"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/rikctltest"
	"rik.dev/rik/internal/testkit/golden"
)

func TestHistoryGolden(t *testing.T) {
	t.Parallel()
	w := rikctltest.Workload()
	revisions := []rikv1alpha1.WorkloadRevision{
		{ObjectMeta: metav1.ObjectMeta{Name: "web-c2d2f2g2h2"}, Revision: 1, Template: rikctltest.Template()},
		{ObjectMeta: metav1.ObjectMeta{Name: "web-b2c4d6f8h2"}, Revision: 2, Template: rikv1alpha1.InstanceTemplate{
			App: &rikv1alpha1.App{Repo: "https://example.org/a", Version: "2"}}},
	}
	var out bytes.Buffer
	if err := printHistory(&out, w, revisions); err != nil {
		t.Fatal(err)
	}
	if err := printTemplate(&out, &revisions[1]); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, "history"+".golden", out.Bytes())
}

package splitter

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestReadRoot(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		object string
		want   Root
	}{
		"nothing said": {`{kind: Deployment, metadata: {name: web}}`, Root{Name: "web", Replicas: 1, TerminationGrace: 30 * time.Second}},
		"all of it": {`
metadata: {name: web}
spec:
  replicas: 7
  template:
    spec:
      terminationGracePeriodSeconds: 5
      overhead: {memory: 1Mi}
      initContainers:
      - {name: fetch, resources: {requests: {cpu: "2", memory: 10Mi}}}
      - {name: proxy, restartPolicy: Always, resources: {requests: {cpu: 100m}}}
      - {name: after, resources: {requests: {cpu: 1950m}}}
      containers:
      - {name: a, resources: {requests: {cpu: 300m, memory: 20Mi}}}
      - {name: b, resources: {requests: {cpu: 300m}}}`,
			Root{Name: "web", Replicas: 7, TerminationGrace: 5 * time.Second, Requests: corev1.ResourceList{
				"cpu": resource.MustParse("2050m"), "memory": resource.MustParse("21Mi"),
			}}},
		"a CronJob": {`
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {spec: {terminationGracePeriodSeconds: 0, containers: [{name: a}]}}}}}`,
			Root{Name: "nightly", Replicas: 1}},
		"an endless grace period": {`{metadata: {name: web}, spec: {template: {spec: {terminationGracePeriodSeconds: 10000000000}}}}`,
			Root{Name: "web", Replicas: 1, TerminationGrace: 100 * 365 * 24 * time.Hour}},
		"a grace below none": {`{metadata: {name: web}, spec: {template: {spec: {terminationGracePeriodSeconds: -1}}}}`,
			Root{Name: "web", Replicas: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := &unstructured.Unstructured{}
			if err := yaml.Unmarshal([]byte(tc.object), &root.Object); err != nil {
				t.Fatal(err)
			}
			if n, ok := root.Object["spec"].(map[string]any); ok {
				integers(n)
			}
			if got := ReadRoot(root, ScalePath{}); !equality.Semantic.DeepEqual(got, tc.want) {
				t.Errorf("ReadRoot() = %+v, want %+v", got, tc.want)
			}
		})
	}
}

// integers converts floating-point numbers to integers, as API servers send them.
func integers(m map[string]any) {
	for name, value := range m {
		switch v := value.(type) {
		case float64:
			m[name] = int64(v)
		case map[string]any:
			integers(v)
		}
	}
}

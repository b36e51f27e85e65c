package pull

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Requests of the agent. A limit on its memory would end it when a cluster has much to
// carry, so there is none.
const (
	requestCPU    = "20m"
	requestMemory = "64Mi"
)

// nobody is the user that images without an operating system give to those who need no
// rights.
const nobody = 65532

// secretMode lets that user read what is root's. The folder of a volume is open to no
// other user of the node.
const secretMode = 0o444

// deployment runs one syncer, and never two: the old one ends before the new begins.
func (o *Options) deployment() *unstructured.Unstructured {
	labels := map[string]any{PartLabel: Name, ClusterUIDLabel: string(o.ClusterUID)}
	return o.object("apps/v1", "Deployment", Namespace(o.ClusterUID), Name, map[string]any{
		"spec": map[string]any{
			"replicas": int64(1),
			"strategy": map[string]any{"type": "Recreate"},
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels, "annotations": map[string]any{credentialsAnnotation: o.credentialsHash()}},
				"spec": map[string]any{
					"serviceAccountName": Name,
					"securityContext": map[string]any{
						"runAsNonRoot": true, "runAsUser": int64(nobody), "seccompProfile": map[string]any{"type": "RuntimeDefault"},
					},
					"containers": []any{o.container()},
					"volumes":    []any{map[string]any{"name": "credentials", "secret": map[string]any{"secretName": Name}}},
				},
			},
		},
	})
}

func (o *Options) container() map[string]any {
	return map[string]any{
		"name": Name, "image": o.Image, "args": o.args(),
		"resources": map[string]any{"requests": map[string]any{"cpu": requestCPU, "memory": requestMemory}},
		"securityContext": map[string]any{
			"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
			"capabilities": map[string]any{"drop": []any{"ALL"}},
		},
		"volumeMounts": []any{map[string]any{"name": "credentials", "mountPath": Mount, "readOnly": true}},
	}
}

// workload runs the syncer on a rik cluster: in its node's network, from which both API
// servers can be reached.
func (o *Options) workload() *unstructured.Unstructured {
	return o.object("rik.dev/v1alpha1", "Workload", Namespace(o.ClusterUID), Name, map[string]any{
		"spec": map[string]any{
			"kind": "Pod", "deploy": "Automatic", "replicas": int64(1),
			"strategy":    map[string]any{"type": "Recreate"},
			"hostNetwork": true,
			"annotations": map[string]any{credentialsAnnotation: o.credentialsHash()},
			"containers": []any{map[string]any{
				"name": Name, "image": o.Image, "args": o.args(),
				"user":         strconv.Itoa(nobody) + ":" + strconv.Itoa(nobody),
				"resources":    map[string]any{"requests": map[string]any{"cpu": requestCPU, "memory": requestMemory}},
				"volumeMounts": []any{map[string]any{"name": "credentials", "mountPath": Mount, "readOnly": true}},
			}},
			"volumes": []any{map[string]any{"name": "credentials", "secret": map[string]any{"name": Name, "mode": int64(secretMode)}}},
		},
	})
}

package pull

import (
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The resource requests of the agent. There is no memory limit, because it would kill the agent
// when a cluster has many objects to copy.
const (
	requestCPU    = "20m"
	requestMemory = "64Mi"
)

// unprivilegedUser is the usual UID for processes without privileges in images without an
// operating system.
const unprivilegedUser = 65532

// secretMode lets that user read files that belong to root. Other users of the node cannot access
// the directory of the volume.
const secretMode = 0o444

// deployment returns the Deployment that runs one syncer. The old pod ends before the new one
// starts, so that two never run at once.
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
						"runAsNonRoot": true, "runAsUser": int64(unprivilegedUser), "seccompProfile": map[string]any{"type": "RuntimeDefault"},
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

// workload returns the Workload that runs the syncer on a rik cluster. It uses the network of its
// node, from which both API servers can be reached.
func (o *Options) workload() *unstructured.Unstructured {
	return o.object("rik.dev/v1alpha1", "Workload", Namespace(o.ClusterUID), Name, map[string]any{
		"spec": map[string]any{
			"kind": "Pod", "deploy": "Automatic", "replicas": int64(1),
			"strategy":    map[string]any{"type": "Recreate"},
			"hostNetwork": true,
			"annotations": map[string]any{credentialsAnnotation: o.credentialsHash()},
			"containers": []any{map[string]any{
				"name": Name, "image": o.Image, "args": o.args(),
				"user":         strconv.Itoa(unprivilegedUser) + ":" + strconv.Itoa(unprivilegedUser),
				"resources":    map[string]any{"requests": map[string]any{"cpu": requestCPU, "memory": requestMemory}},
				"volumeMounts": []any{map[string]any{"name": "credentials", "mountPath": Mount, "readOnly": true}},
			}},
			"volumes": []any{map[string]any{"name": "credentials", "secret": map[string]any{"name": Name, "mode": int64(secretMode)}}},
		},
	})
}

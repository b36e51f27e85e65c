package crdpuller

import (
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type column = apiextensionsv1.CustomResourceColumnDefinition

func text(name, path string) column   { return column{Name: name, Type: "string", JSONPath: path} }
func number(name, path string) column { return column{Name: name, Type: "integer", JSONPath: path} }
func truth(name, path string) column  { return column{Name: name, Type: "boolean", JSONPath: path} }
func since(name, path string) column  { return column{Name: name, Type: "date", JSONPath: path} }

// wide returns a column that only "-o wide" shows.
func wide(c column) column {
	c.Priority = 1
	return c
}

// The columns that many types have.
var (
	desired    = number("Desired", replicasPath)
	current    = number("Current", statusReplicasPath)
	ready      = number("Ready", ".status.readyReplicas")
	containers = wide(text("Containers", ".spec.template.spec.containers[*].name"))
	images     = wide(text("Images", ".spec.template.spec.containers[*].image"))
	age        = since("Age", ".metadata.creationTimestamp")
)

// builtInColumns are the columns that kubectl shows for built-in types of Kubernetes, in any
// version. The column of a CRD can only show one unchanged field. Where Kubernetes prints two
// fields, such as "2/3" ready, there are two columns here. Columns that Kubernetes counts or
// computes are left out. Types of the core group have no columns, because CRDs cannot have that
// group.
var builtInColumns = map[schema.GroupKind][]column{
	{Group: "apps", Kind: "Deployment"}: {
		desired, ready, number("Up-to-date", ".status.updatedReplicas"), number("Available", ".status.availableReplicas"), age, containers, images},
	{Group: "apps", Kind: "ReplicaSet"}:  {desired, current, ready, age, containers, images},
	{Group: "apps", Kind: "StatefulSet"}: {desired, ready, age, containers, images},
	{Group: "apps", Kind: "DaemonSet"}: {
		number("Desired", ".status.desiredNumberScheduled"), number("Current", ".status.currentNumberScheduled"),
		number("Ready", ".status.numberReady"), number("Up-to-date", ".status.updatedNumberScheduled"),
		number("Available", ".status.numberAvailable"), age, containers, images},
	{Group: "apps", Kind: "ControllerRevision"}: {
		text("Controller", ".metadata.ownerReferences[?(@.controller==true)].name"), number("Revision", ".revision"), age},
	{Group: "batch", Kind: "Job"}: {
		text("Status", `.status.conditions[?(@.status=="True")].type`), number("Completions", ".spec.completions"),
		number("Succeeded", ".status.succeeded"), number("Failed", ".status.failed"), age, containers, images},
	{Group: "batch", Kind: "CronJob"}: {
		text("Schedule", ".spec.schedule"), text("Timezone", ".spec.timeZone"), truth("Suspend", ".spec.suspend"),
		since("Last Schedule", ".status.lastScheduleTime"), age,
		wide(text("Containers", ".spec.jobTemplate.spec.template.spec.containers[*].name")),
		wide(text("Images", ".spec.jobTemplate.spec.template.spec.containers[*].image"))},
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: {
		text("Kind", ".spec.scaleTargetRef.kind"), text("Reference", ".spec.scaleTargetRef.name"), number("Minpods", ".spec.minReplicas"),
		number("Maxpods", ".spec.maxReplicas"), number("Replicas", ".status.currentReplicas"), age},
	{Group: "policy", Kind: "PodDisruptionBudget"}: {
		text("Min Available", ".spec.minAvailable"), text("Max Unavailable", ".spec.maxUnavailable"),
		number("Allowed Disruptions", ".status.disruptionsAllowed"), age},
	{Group: "networking.k8s.io", Kind: "Ingress"}: {
		text("Class", ".spec.ingressClassName"), text("Hosts", ".spec.rules[*].host"),
		text("Address", ".status.loadBalancer.ingress[*].ip"), text("Host Name", ".status.loadBalancer.ingress[*].hostname"), age},
	{Group: "networking.k8s.io", Kind: "IngressClass"}: {
		text("Controller", ".spec.controller"), text("Parameters", ".spec.parameters.name"), age},
	{Group: "discovery.k8s.io", Kind: "EndpointSlice"}: {
		text("Addresstype", ".addressType"), text("Ports", ".ports[*].port"), text("Endpoints", ".endpoints[*].addresses[*]"), age},
	{Group: "coordination.k8s.io", Kind: "Lease"}: {text("Holder", ".spec.holderIdentity"), age},
	{Group: "scheduling.k8s.io", Kind: "PriorityClass"}: {
		number("Value", ".value"), truth("Global-Default", ".globalDefault"), age, text("Preemptionpolicy", ".preemptionPolicy")},
	{Group: "node.k8s.io", Kind: "RuntimeClass"}: {text("Handler", ".handler"), age},
	{Group: "storage.k8s.io", Kind: "StorageClass"}: {
		text("Provisioner", ".provisioner"), text("Reclaimpolicy", ".reclaimPolicy"), text("Volumebindingmode", ".volumeBindingMode"),
		truth("Allowvolumeexpansion", ".allowVolumeExpansion"), age},
	{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}: {
		text("Signername", ".spec.signerName"), text("Requestor", ".spec.username"),
		number("Requestedduration", ".spec.expirationSeconds"), text("Condition", ".status.conditions[*].type"), age},
}

// columnsOf returns the columns of a built-in type whose fields are in the schema. A cluster's
// version of a type may lack some fields. Without columns, the server shows name and age.
func columnsOf(kind schema.GroupKind, root *props) []column {
	var columns []column
	for _, c := range builtInColumns[kind] {
		if strings.HasPrefix(c.JSONPath, ".metadata.") || hasField(root, c.JSONPath) {
			columns = append(columns, c)
		}
	}
	return columns
}

// hasField reports whether a schema has the field at a path. The names of lists in the path end
// in brackets. A filter in brackets may contain dots.
func hasField(p *props, path string) bool {
	for path != "" {
		path = strings.TrimPrefix(path, ".")
		end := strings.IndexAny(path, ".[")
		if end < 0 {
			end = len(path)
		}
		child, ok := p.Properties[path[:end]]
		if !ok {
			return false
		}
		p, path = &child, path[end:]
		if strings.HasPrefix(path, "[") {
			if p.Items == nil || p.Items.Schema == nil {
				return false
			}
			p, path = p.Items.Schema, path[strings.Index(path, "]")+1:]
		}
	}
	return true
}

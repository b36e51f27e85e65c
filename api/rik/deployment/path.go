package deployment

import "regexp"

// places maps paths in a Workload to paths in its Deployment. They are tried in this order, and all
// that match apply.
var places = []struct {
	workload   *regexp.Regexp
	deployment string
}{
	{regexp.MustCompile(`^spec\.(labels|annotations)`), "spec.template.metadata.${1}"},
	{regexp.MustCompile(`^spec\.strategy\.(maxSurge|maxUnavailable)`), "spec.strategy.rollingUpdate.${1}"},
	{regexp.MustCompile(`^spec\.strategy\.progressDeadlineSeconds`), "spec.progressDeadlineSeconds"},
	{regexp.MustCompile(`^spec\.(containers|initContainers|volumes|terminationGracePeriodSeconds|hostNetwork|hostname|imagePullSecrets|nodeSelector|affinity|tolerations|priority)`), "spec.template.spec.${1}"},
	{regexp.MustCompile(`^spec\.runtime$`), "spec.template.spec.runtimeClassName"},
	{regexp.MustCompile(`^spec\.topologySpread\b`), "spec.template.spec.topologySpreadConstraints"},

	{regexp.MustCompile(`(ontainers\[\d+\])\.security\.addCapabilities`), "${1}.securityContext.capabilities.add"},
	{regexp.MustCompile(`(ontainers\[\d+\])\.security\.dropCapabilities`), "${1}.securityContext.capabilities.drop"},
	{regexp.MustCompile(`(ontainers\[\d+\])\.security\b`), "${1}.securityContext"},
	{regexp.MustCompile(`(ontainers\[\d+\])\.user$`), "${1}.securityContext.runAsUser"},
	{regexp.MustCompile(`(ontainers\[\d+\]\.ports\[\d+\])\.(port|targetPort)$`), "${1}.containerPort"},
	{regexp.MustCompile(`(ontainers\[\d+\]\.envFrom\[\d+\])\.configMap$`), "${1}.configMapRef.name"},
	{regexp.MustCompile(`(ontainers\[\d+\]\.envFrom\[\d+\])\.secret$`), "${1}.secretRef.name"},
	{regexp.MustCompile(`(\.resources\.(?:requests|limits))\[disk\]`), "${1}[ephemeral-storage]"},
	{regexp.MustCompile(`(Probe)\.tcp\b`), "${1}.tcpSocket"},
	{regexp.MustCompile(`(Probe)\.http\.headers.*`), "${1}.httpGet.httpHeaders"},
	{regexp.MustCompile(`(Probe)\.http\b`), "${1}.httpGet"},
	{regexp.MustCompile(`(volumes\[\d+\]\.secret)\.name$`), "${1}.secretName"},
	{regexp.MustCompile(`(volumes\[\d+\]\.(?:secret|configMap))\.mode$`), "${1}.defaultMode"},
	{regexp.MustCompile(`(volumes\[\d+\]\.emptyDir)\.sizeLimitBytes$`), "${1}.sizeLimit"},
	{regexp.MustCompile(`(affinity)\.nodeRequired`), "${1}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"},
	{regexp.MustCompile(`(affinity)\.nodePreferred(\[\d+\])\.term`), "${1}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution${2}.preference"},
	{regexp.MustCompile(`(affinity)\.nodePreferred`), "${1}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"},
	{regexp.MustCompile(`(affinity)\.instanceRequired(\[\d+\])\.selector`), "${1}.podAffinity.requiredDuringSchedulingIgnoredDuringExecution${2}.labelSelector"},
	{regexp.MustCompile(`(affinity)\.instanceRequired`), "${1}.podAffinity.requiredDuringSchedulingIgnoredDuringExecution"},
	{regexp.MustCompile(`(affinity)\.instanceForbidden(\[\d+\])\.selector`), "${1}.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution${2}.labelSelector"},
	{regexp.MustCompile(`(affinity)\.instanceForbidden`), "${1}.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution"},
}

// Path returns the path in a Deployment of a field with the given path in its Workload.
func Path(workload string) string {
	out := workload
	for _, p := range places {
		out = p.workload.ReplaceAllString(out, p.deployment)
	}
	return out
}

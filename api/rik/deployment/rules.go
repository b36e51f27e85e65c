package deployment

import (
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rule determines how one field is validated.
type rule struct {
	// honored means that the field is translated. The fields in it have their own rules.
	honored bool
	// allows reports whether a value of a field that is not honored has no effect.
	allows func(value any) bool
	// advice is the message for other values.
	advice string
}

var yes = rule{honored: true}

// no rejects all values except the zero value.
func no(advice string) rule { return rule{advice: advice} }

// only allows the values that describe what rik does in any case.
func only[T comparable](advice string, values ...T) rule {
	return rule{advice: advice, allows: func(value any) bool {
		for _, v := range values {
			if value == any(v) {
				return true
			}
		}
		return false
	}}
}

// anything allows all values of a field that has no meaning without Kubernetes' pods.
func anything() rule { return rule{allows: func(any) bool { return true }} }

const (
	noAccount    = "instances get no token of a service account: set automountServiceAccountToken: false in spec.template.spec to allow any name"
	noHostPart   = "each instance has its own network, names and processes: leave it out"
	noLinux      = "containers run on Linux without SELinux and AppArmor: leave it out"
	noVolume     = "volumes are emptyDir, configMap, secret and hostPath"
	noHook       = "containers have no hooks: handle SIGTERM in the program; an instance gets it when it receives no new connections any more"
	noClaims     = "rik does not allocate devices: leave it out"
	noPreference = "rik does not support preferences about other pods: use topologySpreadConstraints with whenUnsatisfiable: ScheduleAnyway to spread replicas"
	noNamespaces = "a term selects only instances of its own namespace: leave it out"
	noPodDNS     = "instances use their node's name server: leave it out"
	noProbeHost  = "probes connect to the instance itself: leave it out"
)

// of returns a type.
func of[T any]() reflect.Type { return reflect.TypeFor[T]() }

// wholes lists the types that are copied or compared as a whole.
var wholes = []reflect.Type{of[resource.Quantity](), of[intstr.IntOrString](), of[metav1.LabelSelector](), of[metav1.Time]()}

// rules has the rules for the fields of all other types in a Deployment's spec.
var rules = map[reflect.Type]map[string]rule{
	of[appsv1.DeploymentSpec](): {
		"Replicas": yes, "Selector": yes, "Template": yes, "Strategy": yes, "RevisionHistoryLimit": yes,
		"Paused": yes, "ProgressDeadlineSeconds": yes,
		"MinReadySeconds": no("an instance counts as available as soon as it is ready: leave it out, and let a readinessProbe with a successThreshold wait"),
	},
	of[appsv1.DeploymentStrategy]():      {"Type": yes, "RollingUpdate": yes},
	of[appsv1.RollingUpdateDeployment](): {"MaxUnavailable": yes, "MaxSurge": yes},
	of[corev1.PodTemplateSpec]():         {"ObjectMeta": yes, "Spec": yes},
	of[metav1.ObjectMeta](): {
		"Labels": yes, "Annotations": yes,
		"Name": anything(), "GenerateName": anything(), "Namespace": anything(), "SelfLink": anything(), "UID": anything(),
		"ResourceVersion": anything(), "Generation": anything(), "CreationTimestamp": anything(), "DeletionTimestamp": anything(),
		"DeletionGracePeriodSeconds": anything(), "OwnerReferences": anything(), "ManagedFields": anything(),
		"Finalizers": no("instances have only rik's own finalizers: leave it out"),
	},
	of[corev1.PodSpec]():              podRules,
	of[corev1.Container]():            containerRules,
	of[corev1.ContainerPort]():        {"Name": yes, "HostPort": yes, "ContainerPort": yes, "Protocol": yes, "HostIP": only("a hostPort is open on every address of every node: leave it out", "0.0.0.0")},
	of[corev1.EnvVar]():               {"Name": yes, "Value": yes, "ValueFrom": yes},
	of[corev1.EnvVarSource]():         {"FieldRef": yes, "ConfigMapKeyRef": yes, "SecretKeyRef": yes, "ResourceFieldRef": no("write the value itself"), "FileKeyRef": no("use a configMapKeyRef or secretKeyRef")},
	of[corev1.EnvFromSource]():        {"Prefix": yes, "ConfigMapRef": yes, "SecretRef": yes},
	of[corev1.ObjectFieldSelector]():  {"APIVersion": yes, "FieldPath": yes},
	of[corev1.ConfigMapKeySelector](): {"LocalObjectReference": yes, "Key": yes, "Optional": yes},
	of[corev1.SecretKeySelector]():    {"LocalObjectReference": yes, "Key": yes, "Optional": yes},
	of[corev1.ConfigMapEnvSource]():   {"LocalObjectReference": yes, "Optional": yes},
	of[corev1.SecretEnvSource]():      {"LocalObjectReference": yes, "Optional": yes},
	of[corev1.LocalObjectReference](): {"Name": yes},
	of[corev1.PodOS]():                {"Name": yes},
	of[corev1.VolumeMount]():          {"Name": yes, "ReadOnly": yes, "MountPath": yes, "SubPath": yes, "RecursiveReadOnly": only("rik does not make nested mounts read-only: leave it out", corev1.RecursiveReadOnlyDisabled), "MountPropagation": only("rik does not propagate mounts: leave it out", corev1.MountPropagationNone), "SubPathExpr": no("use subPath")},
	of[corev1.Volume]():               {"Name": yes, "VolumeSource": yes},
	of[corev1.VolumeSource]():         volumeRules,
	of[corev1.Probe]():                {"ProbeHandler": yes, "InitialDelaySeconds": yes, "TimeoutSeconds": yes, "PeriodSeconds": yes, "SuccessThreshold": yes, "FailureThreshold": yes, "TerminationGracePeriodSeconds": no("spec.template.spec.terminationGracePeriodSeconds applies to each stop: leave it out")},
	of[corev1.ProbeHandler]():         {"Exec": yes, "HTTPGet": yes, "TCPSocket": yes, "GRPC": no("use httpGet, tcpSocket or exec")},
	of[corev1.HTTPGetAction]():        {"Path": yes, "Port": yes, "Scheme": yes, "HTTPHeaders": yes, "Host": no(noProbeHost + ", and set a header Host if the program needs it")},
	of[corev1.TCPSocketAction]():      {"Port": yes, "Host": no(noProbeHost)},
	of[corev1.ExecAction]():           {"Command": yes},
	of[corev1.HTTPHeader]():           {"Name": yes, "Value": yes},

	of[corev1.ResourceRequirements](): {"Limits": yes, "Requests": yes, "Claims": no(noClaims)},
	of[corev1.SecurityContext](): {
		"Capabilities": yes, "Privileged": yes, "RunAsUser": yes, "RunAsGroup": yes, "RunAsNonRoot": yes, "ReadOnlyRootFilesystem": yes,
		"AllowPrivilegeEscalation": yes, "SeccompProfile": yes,
		"SELinuxOptions": no(noLinux), "WindowsOptions": no(noLinux), "AppArmorProfile": no(noLinux),
		"ProcMount": only("/proc is always masked: leave it out", corev1.DefaultProcMount),
	},
	of[corev1.PodSecurityContext](): {
		"RunAsUser": yes, "RunAsGroup": yes, "RunAsNonRoot": yes, "SeccompProfile": yes,
		"SELinuxOptions": no(noLinux), "WindowsOptions": no(noLinux), "AppArmorProfile": no(noLinux), "SELinuxChangePolicy": no(noLinux),
		"SupplementalGroups": no("a process has the groups of its user in the image: leave it out"), "SupplementalGroupsPolicy": only("a process has the groups of its user in the image: leave it out", corev1.SupplementalGroupsPolicyMerge),
		"FSGroup": no("volumes keep their owner: leave it out"), "FSGroupChangePolicy": no("volumes keep their owner: leave it out"),
		"Sysctls": no("set them on the node"),
	},
	of[corev1.Capabilities](): {"Add": yes, "Drop": yes},
	of[corev1.SeccompProfile](): {
		"Type":             only("containers run under the runtime's default profile: use RuntimeDefault or leave it out", corev1.SeccompProfileTypeRuntimeDefault),
		"LocalhostProfile": no("containers run under the runtime's default profile: leave it out"),
	},

	of[corev1.EmptyDirVolumeSource]():  {"Medium": only("use the medium Memory for a directory in memory, and no medium for one on the disk", corev1.StorageMediumMemory), "SizeLimit": yes},
	of[corev1.ConfigMapVolumeSource](): {"LocalObjectReference": yes, "Items": yes, "DefaultMode": yes, "Optional": yes},
	of[corev1.SecretVolumeSource]():    {"SecretName": yes, "Items": yes, "DefaultMode": yes, "Optional": yes},
	of[corev1.KeyToPath]():             {"Key": yes, "Path": yes, "Mode": no("all files of a volume have its defaultMode: leave it out")},
	of[corev1.HostPathVolumeSource](): {
		"Path": yes, "Type": only("the type is Directory, DirectoryOrCreate or none", corev1.HostPathUnset, corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate),
	},

	of[corev1.Affinity]():                {"NodeAffinity": yes, "PodAffinity": yes, "PodAntiAffinity": yes},
	of[corev1.NodeAffinity]():            {"RequiredDuringSchedulingIgnoredDuringExecution": yes, "PreferredDuringSchedulingIgnoredDuringExecution": yes},
	of[corev1.NodeSelector]():            {"NodeSelectorTerms": yes},
	of[corev1.PreferredSchedulingTerm](): {"Weight": yes, "Preference": yes},
	of[corev1.NodeSelectorTerm]():        {"MatchExpressions": yes, "MatchFields": no("use matchExpressions with the label kubernetes.io/hostname")},
	of[corev1.NodeSelectorRequirement](): {"Key": yes, "Operator": yes, "Values": yes},
	of[corev1.PodAffinity]():             {"RequiredDuringSchedulingIgnoredDuringExecution": yes, "PreferredDuringSchedulingIgnoredDuringExecution": no(noPreference)},
	of[corev1.PodAntiAffinity]():         {"RequiredDuringSchedulingIgnoredDuringExecution": yes, "PreferredDuringSchedulingIgnoredDuringExecution": no(noPreference)},
	of[corev1.PodAffinityTerm](): {
		"LabelSelector": yes, "TopologyKey": yes, "Namespaces": no(noNamespaces), "NamespaceSelector": no(noNamespaces),
		"MatchLabelKeys": no("write the labels into labelSelector"), "MismatchLabelKeys": no("write the labels into labelSelector"),
	},
	of[corev1.Toleration](): {
		"Key": yes, "Operator": yes, "Value": yes, "Effect": yes,
		"TolerationSeconds": no("an instance that tolerates a taint stays: leave it out; the cluster's --replace-after sets how soon instances of a silent node are replaced"),
	},
	of[corev1.TopologySpreadConstraint](): {
		"MaxSkew": yes, "TopologyKey": yes, "WhenUnsatisfiable": yes, "LabelSelector": yes,
		"MinDomains":         only("rik has no minimum number of domains: leave it out", int32(1)),
		"NodeAffinityPolicy": only("nodes that are excluded do not count: use Honor or leave it out", corev1.NodeInclusionPolicyHonor),
		"NodeTaintsPolicy":   only("tainted nodes count: use Ignore or leave it out", corev1.NodeInclusionPolicyIgnore),
		"MatchLabelKeys":     no("the replicas of all revisions are spread together: leave it out"),
	},
}

var podRules = map[string]rule{
	"Volumes": yes, "InitContainers": yes, "Containers": yes, "TerminationGracePeriodSeconds": yes, "NodeSelector": yes,
	"HostNetwork": yes, "SecurityContext": yes, "ImagePullSecrets": yes, "Hostname": yes, "Affinity": yes, "Tolerations": yes,
	"Priority": yes, "RuntimeClassName": yes, "TopologySpreadConstraints": yes,
	"ServiceAccountName": yes, "DeprecatedServiceAccount": yes, "AutomountServiceAccountToken": yes,

	"EphemeralContainers":   no("use rikctl exec"),
	"RestartPolicy":         only("a Deployment restarts containers that end: use Always", corev1.RestartPolicyAlways),
	"ActiveDeadlineSeconds": no("a Deployment runs until it is deleted: leave it out"),
	"DNSPolicy":             only(noPodDNS+", or use ClusterFirst", corev1.DNSClusterFirst),
	"DNSConfig":             no(noPodDNS),
	"NodeName":              no("use nodeSelector with the label kubernetes.io/hostname"),
	"HostPID":               no(noHostPart), "HostIPC": no(noHostPart), "ShareProcessNamespace": only(noHostPart, false),
	"HostUsers":        only("containers have no user namespace of their own: leave it out", true),
	"Subdomain":        no("an instance's name ends in its workload's: leave it out"),
	"HostnameOverride": no("use hostname"), "SetHostnameAsFQDN": only("a host name has no domain: leave it out", false),
	"SchedulerName":     only("there is one scheduler: leave it out", corev1.DefaultSchedulerName),
	"HostAliases":       no("names come from the name server: leave it out"),
	"PriorityClassName": no("rik has no priority classes: write the number into priority"),
	"PreemptionPolicy":  only("instances of higher priority can always preempt others: leave it out", corev1.PreemptLowerPriority),
	"ReadinessGates":    no("only the readinessProbe determines readiness: leave it out"),
	// rik never sets variables about services. Both values allow that.
	"EnableServiceLinks": anything(),
	"Overhead":           no("rik adds no overhead to requests: add it to the requests of a container"),
	"OS":                 yes, "SchedulingGates": no("instances are placed at once: set replicas to 0 instead"),
	"ResourceClaims": no(noClaims), "Resources": no("write resources into the containers"), "SchedulingGroup": no("instances are placed one by one: leave it out"),
}

var containerRules = map[string]rule{
	"Name": yes, "Image": yes, "Command": yes, "Args": yes, "WorkingDir": yes, "Ports": yes, "EnvFrom": yes, "Env": yes,
	"Resources": yes, "VolumeMounts": yes, "LivenessProbe": yes, "ReadinessProbe": yes, "StartupProbe": yes,
	"ImagePullPolicy": yes, "SecurityContext": yes, "TTY": yes,

	"ResizePolicy":  anything(), // rik does not resize in place
	"RestartPolicy": no("rik has no sidecars in initContainers: move the container to containers"), "RestartPolicyRules": no("a Deployment restarts containers that end: leave it out"),
	"VolumeDevices": no(noVolume), "Lifecycle": no(noHook),
	"TerminationMessagePath":   only("rik reads no termination message: write it to the log, and leave this out", corev1.TerminationMessagePathDefault),
	"TerminationMessagePolicy": only("rik reads no termination message: write it to the log, and leave this out", corev1.TerminationMessageReadFile),
	"Stdin":                    no("a container's standard input is empty: leave it out"), "StdinOnce": no("a container's standard input is empty: leave it out"),
}

var volumeRules = func() map[string]rule {
	out := map[string]rule{"EmptyDir": yes, "ConfigMap": yes, "Secret": yes, "HostPath": yes}
	for _, name := range []string{
		"GCEPersistentDisk", "AWSElasticBlockStore", "GitRepo", "NFS", "ISCSI", "Glusterfs", "PersistentVolumeClaim", "RBD", "FlexVolume",
		"Cinder", "CephFS", "Flocker", "DownwardAPI", "FC", "AzureFile", "VsphereVolume", "Quobyte", "AzureDisk", "PhotonPersistentDisk",
		"Projected", "PortworxVolume", "ScaleIO", "StorageOS", "CSI", "Ephemeral", "Image",
	} {
		out[name] = no(noVolume)
	}
	return out
}()

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RestartPolicy says when the riklet starts an ended container again.
type RestartPolicy string

const (
	// RestartAlways restarts whatever the exit code.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure restarts after an exit code other than 0.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever retries nothing: the user gets the error.
	RestartNever RestartPolicy = "Never"
)

// DisconnectPolicy says what a node does with an instance when it hears
// nothing of its controller.
type DisconnectPolicy string

const (
	// DisconnectKeep lets it run.
	DisconnectKeep DisconnectPolicy = "Keep"
	// DisconnectStop stops it, so that its replacement never runs beside it.
	DisconnectStop DisconnectPolicy = "Stop"
)

// InstanceTemplate is what an instance is made of: the part of a Workload of
// which a WorkloadRevision is a copy.
type InstanceTemplate struct {
	// kind is Pod (default), Function or App.
	// +optional
	Kind WorkloadKind `json:"kind,omitempty" protobuf:"bytes,1,opt,name=kind,casttype=WorkloadKind"`
	// annotations are copied to the instances.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty" protobuf:"bytes,2,rep,name=annotations"`
	// labels are copied to the instances, beside rik's own.
	// +optional
	Labels map[string]string `json:"labels,omitempty" protobuf:"bytes,3,rep,name=labels"`
	// containers of a Pod. At least one for kind Pod, none otherwise.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Containers []Container `json:"containers,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,4,rep,name=containers"`
	// initContainers run one after the other before the containers.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	InitContainers []Container `json:"initContainers,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,5,rep,name=initContainers"`
	// function describes a microVM. Required for kind Function.
	// +optional
	Function *Function `json:"function,omitempty" protobuf:"bytes,6,opt,name=function"`
	// app describes a plain process. Required for kind App.
	// +optional
	App *App `json:"app,omitempty" protobuf:"bytes,7,opt,name=app"`
	// volumes that containers can mount.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Volumes []Volume `json:"volumes,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,8,rep,name=volumes"`
	// restartPolicy is Always (default), OnFailure or Never.
	// +optional
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty" protobuf:"bytes,9,opt,name=restartPolicy,casttype=RestartPolicy"`
	// terminationGracePeriodSeconds is the time between the polite and the hard
	// signal. Defaults to 30.
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty" protobuf:"varint,10,opt,name=terminationGracePeriodSeconds"`
	// hostNetwork runs the instance in its node's network. For administrators.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty" protobuf:"varint,11,opt,name=hostNetwork"`
	// hostname inside the instance. Defaults to the instance's name.
	// +optional
	Hostname string `json:"hostname,omitempty" protobuf:"bytes,12,opt,name=hostname"`
	// runtime names the OCI runtime of the node. Defaults to runc.
	// +optional
	Runtime string `json:"runtime,omitempty" protobuf:"bytes,13,opt,name=runtime"`
	// imagePullSecrets name Secrets of type kubernetes.io/dockerconfigjson in
	// the workload's namespace.
	// +optional
	// +listType=set
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty" protobuf:"bytes,14,rep,name=imagePullSecrets"`
	// onDisconnect is Keep (default) or Stop.
	// +optional
	OnDisconnect DisconnectPolicy `json:"onDisconnect,omitempty" protobuf:"bytes,15,opt,name=onDisconnect,casttype=DisconnectPolicy"`
	// nodeSelector must be a subset of a node's labels.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty" protobuf:"bytes,16,rep,name=nodeSelector"`
	// affinity attracts or repels.
	// +optional
	Affinity *Affinity `json:"affinity,omitempty" protobuf:"bytes,17,opt,name=affinity"`
	// tolerations of taints.
	// +optional
	// +listType=atomic
	Tolerations []Toleration `json:"tolerations,omitempty" protobuf:"bytes,18,rep,name=tolerations"`
	// topologySpread keeps instances apart.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpread []TopologySpread `json:"topologySpread,omitempty" protobuf:"bytes,19,rep,name=topologySpread"`
	// priority: higher is placed first and may displace lower. Defaults to 0; above
	// that it is for administrators.
	// +optional
	Priority int32 `json:"priority,omitempty" protobuf:"varint,20,opt,name=priority"`
	// isolation of a Pod is container (default) or microvm: its containers then
	// run in a virtual machine with a kernel of their own. A Function always is
	// one, an App never.
	// +optional
	Isolation Isolation `json:"isolation,omitempty" protobuf:"bytes,21,opt,name=isolation,casttype=Isolation"`
	// rateLimits bound what a microVM moves.
	// +optional
	RateLimits *RateLimits `json:"rateLimits,omitempty" protobuf:"bytes,22,opt,name=rateLimits"`
}

// Isolation is what stands between an instance and its node.
type Isolation string

const (
	// IsolationContainer is the kernel's namespaces.
	IsolationContainer Isolation = "container"
	// IsolationMicroVM is a virtual machine.
	IsolationMicroVM Isolation = "microvm"
)

// RateLimits bound a microVM's devices; 0 or absent means no bound.
type RateLimits struct {
	// +optional
	DiskBytesPerSecond int64 `json:"diskBytesPerSecond,omitempty" protobuf:"varint,1,opt,name=diskBytesPerSecond"`
	// +optional
	DiskOperationsPerSecond int64 `json:"diskOperationsPerSecond,omitempty" protobuf:"varint,2,opt,name=diskOperationsPerSecond"`
	// +optional
	NetworkReceiveBytesPerSecond int64 `json:"networkReceiveBytesPerSecond,omitempty" protobuf:"varint,3,opt,name=networkReceiveBytesPerSecond"`
	// +optional
	NetworkTransmitBytesPerSecond int64 `json:"networkTransmitBytesPerSecond,omitempty" protobuf:"varint,4,opt,name=networkTransmitBytesPerSecond"`
}

// PullPolicy says when an image is fetched.
type PullPolicy string

const (
	// PullAlways resolves the reference at every start.
	PullAlways PullPolicy = "Always"
	// PullIfNotPresent uses what the node has.
	PullIfNotPresent PullPolicy = "IfNotPresent"
	// PullNever fails when the node does not have it.
	PullNever PullPolicy = "Never"
)

// Container is one container of a Pod.
type Container struct {
	// name is a DNS label, unique in the workload.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// image is a reference: docker:// (default transport), oci:, oci-archive:,
	// docker-archive: or dir:.
	Image string `json:"image" protobuf:"bytes,2,opt,name=image"`
	// imagePullPolicy is IfNotPresent (default, Always for the tag latest of a
	// registry), Always or Never.
	// +optional
	ImagePullPolicy PullPolicy `json:"imagePullPolicy,omitempty" protobuf:"bytes,3,opt,name=imagePullPolicy,casttype=PullPolicy"`
	// command replaces the image's entrypoint.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty" protobuf:"bytes,4,rep,name=command"`
	// args replace the image's cmd.
	// +optional
	// +listType=atomic
	Args []string `json:"args,omitempty" protobuf:"bytes,5,rep,name=args"`
	// workingDir inside the container. Defaults to the image's.
	// +optional
	WorkingDir string `json:"workingDir,omitempty" protobuf:"bytes,6,opt,name=workingDir"`
	// user as "name", "uid" or either with ":group". Defaults to the image's.
	// +optional
	User string `json:"user,omitempty" protobuf:"bytes,7,opt,name=user"`
	// env by unique names, in order; $(NAME) refers to earlier ones.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,8,rep,name=env"`
	// envFrom takes every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,9,rep,name=envFrom"`
	// ports that the container serves.
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []Port `json:"ports,omitempty" protobuf:"bytes,10,rep,name=ports"`
	// resources that it needs and may use at most.
	// +optional
	Resources Resources `json:"resources,omitempty" protobuf:"bytes,11,opt,name=resources"`
	// volumeMounts put volumes into the container's file system.
	// +optional
	// +patchMergeKey=mountPath
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=mountPath
	VolumeMounts []VolumeMount `json:"volumeMounts,omitempty" patchStrategy:"merge" patchMergeKey:"mountPath" protobuf:"bytes,12,rep,name=volumeMounts"`
	// livenessProbe restarts the container when it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,13,opt,name=livenessProbe"`
	// readinessProbe decides whether the container is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,14,opt,name=readinessProbe"`
	// startupProbe holds the other two until it succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,15,opt,name=startupProbe"`
	// security narrows or widens what the processes may do.
	// +optional
	Security *Security `json:"security,omitempty" protobuf:"bytes,16,opt,name=security"`
	// tty gives the process a terminal.
	// +optional
	TTY bool `json:"tty,omitempty" protobuf:"varint,17,opt,name=tty"`
}

// Security is what a container may do beyond or below the safe default.
type Security struct {
	// readOnlyRootFilesystem mounts the root read-only.
	// +optional
	ReadOnlyRootFilesystem bool `json:"readOnlyRootFilesystem,omitempty" protobuf:"varint,1,opt,name=readOnlyRootFilesystem"`
	// addCapabilities beyond the default set, such as NET_ADMIN. For administrators.
	// +optional
	// +listType=set
	AddCapabilities []string `json:"addCapabilities,omitempty" protobuf:"bytes,2,rep,name=addCapabilities"`
	// dropCapabilities of the default set; ALL drops every one.
	// +optional
	// +listType=set
	DropCapabilities []string `json:"dropCapabilities,omitempty" protobuf:"bytes,3,rep,name=dropCapabilities"`
	// privileged takes every protection away. For administrators.
	// +optional
	Privileged bool `json:"privileged,omitempty" protobuf:"varint,4,opt,name=privileged"`
	// runAsNonRoot refuses to start the container as user 0, whoever says so: the
	// container's user, or the image's where the container names none.
	// +optional
	RunAsNonRoot bool `json:"runAsNonRoot,omitempty" protobuf:"varint,5,opt,name=runAsNonRoot"`
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
	// valueFrom takes the value from elsewhere; excludes value.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty" protobuf:"bytes,3,opt,name=valueFrom"`
}

// EnvVarSource is where a value comes from. Exactly one is set.
type EnvVarSource struct {
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty" protobuf:"bytes,1,opt,name=configMapKeyRef"`
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty" protobuf:"bytes,2,opt,name=secretKeyRef"`
	// fieldRef is a field of the instance: metadata.name, metadata.namespace,
	// metadata.uid, spec.nodeName, status.address or status.hostAddress.
	// +optional
	FieldRef string `json:"fieldRef,omitempty" protobuf:"bytes,3,opt,name=fieldRef"`
}

// KeyRef names a key of a ConfigMap or Secret in the same namespace.
type KeyRef struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	Key  string `json:"key" protobuf:"bytes,2,opt,name=key"`
	// +optional
	Optional bool `json:"optional,omitempty" protobuf:"varint,3,opt,name=optional"`
}

// EnvFromSource names a ConfigMap or a Secret. Exactly one is set.
type EnvFromSource struct {
	// prefix is put before every key.
	// +optional
	Prefix string `json:"prefix,omitempty" protobuf:"bytes,1,opt,name=prefix"`
	// +optional
	ConfigMap string `json:"configMap,omitempty" protobuf:"bytes,2,opt,name=configMap"`
	// +optional
	Secret string `json:"secret,omitempty" protobuf:"bytes,3,opt,name=secret"`
	// +optional
	Optional bool `json:"optional,omitempty" protobuf:"varint,4,opt,name=optional"`
}

// Protocol of a port.
type Protocol string

// The protocols that the node proxy routes.
const (
	ProtocolTCP  Protocol = "TCP"
	ProtocolUDP  Protocol = "UDP"
	ProtocolSCTP Protocol = "SCTP"
)

// PortType says from where a port can be reached.
type PortType string

const (
	// PortClusterIP is reachable inside the cluster.
	PortClusterIP PortType = "clusterIP"
	// PortNodePort is reachable on every node's addresses.
	PortNodePort PortType = "nodePort"
	// PortLoadBalancer is reachable on an address for the outside.
	PortLoadBalancer PortType = "loadBalancer"
)

// Port is one port that an instance serves.
type Port struct {
	// +optional
	Name string `json:"name,omitempty" protobuf:"bytes,1,opt,name=name"`
	// port that clients use.
	Port int32 `json:"port" protobuf:"varint,2,opt,name=port"`
	// targetPort that the process listens on. Defaults to port.
	// +optional
	TargetPort int32 `json:"targetPort,omitempty" protobuf:"varint,3,opt,name=targetPort"`
	// protocol is TCP (default), UDP or SCTP.
	// +optional
	// +default="TCP"
	Protocol Protocol `json:"protocol,omitempty" protobuf:"bytes,4,opt,name=protocol,casttype=Protocol"`
	// type is clusterIP (default), nodePort or loadBalancer.
	// +optional
	Type PortType `json:"type,omitempty" protobuf:"bytes,5,opt,name=type,casttype=PortType"`
}

// ResourceName names something that a node has an amount of.
type ResourceName string

const (
	// ResourceCPU in cores.
	ResourceCPU ResourceName = "cpu"
	// ResourceMemory in bytes.
	ResourceMemory ResourceName = "memory"
	// ResourceDisk in bytes.
	ResourceDisk ResourceName = "disk"
	// ResourceInstances counts instances; in a node's capacity and in quotas.
	ResourceInstances ResourceName = "instances"
)

// Resources bounds what a container uses.
type Resources struct {
	// requests are reserved on the node. Default to limits.
	// +optional
	Requests ResourceList `json:"requests,omitempty" protobuf:"bytes,1,rep,name=requests,casttype=ResourceList,castkey=ResourceName"`
	// limits are enforced by the kernel.
	// +optional
	Limits ResourceList `json:"limits,omitempty" protobuf:"bytes,2,rep,name=limits,casttype=ResourceList,castkey=ResourceName"`
}

// Probe asks a container how it is. Exactly one of exec, tcp and http is set.
type Probe struct {
	// +optional
	Exec *ExecProbe `json:"exec,omitempty" protobuf:"bytes,1,opt,name=exec"`
	// +optional
	TCP *TCPProbe `json:"tcp,omitempty" protobuf:"bytes,2,opt,name=tcp"`
	// +optional
	HTTP *HTTPProbe `json:"http,omitempty" protobuf:"bytes,3,opt,name=http"`
	// initialDelaySeconds before the first one. Defaults to 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty" protobuf:"varint,4,opt,name=initialDelaySeconds"`
	// periodSeconds between two. Defaults to 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty" protobuf:"varint,5,opt,name=periodSeconds"`
	// timeoutSeconds of one. Defaults to 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty" protobuf:"varint,6,opt,name=timeoutSeconds"`
	// successThreshold in a row to be counted as healthy. Defaults to 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty" protobuf:"varint,7,opt,name=successThreshold"`
	// failureThreshold in a row to be counted as failed. Defaults to 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty" protobuf:"varint,8,opt,name=failureThreshold"`
}

// ExecProbe succeeds when a command in the container exits with 0.
type ExecProbe struct {
	// +listType=atomic
	Command []string `json:"command" protobuf:"bytes,1,rep,name=command"`
}

// TCPProbe succeeds when a connection is accepted.
type TCPProbe struct {
	Port int32 `json:"port" protobuf:"varint,1,opt,name=port"`
}

// HTTPProbe succeeds on a status from 200 to 399.
type HTTPProbe struct {
	// +optional
	Path string `json:"path,omitempty" protobuf:"bytes,1,opt,name=path"`
	Port int32  `json:"port" protobuf:"varint,2,opt,name=port"`
	// scheme is HTTP (default) or HTTPS, whose certificate is not verified.
	// +optional
	Scheme string `json:"scheme,omitempty" protobuf:"bytes,3,opt,name=scheme"`
	// +optional
	Headers map[string]string `json:"headers,omitempty" protobuf:"bytes,4,rep,name=headers"`
}

// Volume is something that containers can mount. Exactly one source is set.
type Volume struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// +optional
	EmptyDir *EmptyDirVolume `json:"emptyDir,omitempty" protobuf:"bytes,2,opt,name=emptyDir"`
	// +optional
	ConfigMap *ObjectVolume `json:"configMap,omitempty" protobuf:"bytes,3,opt,name=configMap"`
	// +optional
	Secret *ObjectVolume `json:"secret,omitempty" protobuf:"bytes,4,opt,name=secret"`
	// hostPath is for administrators.
	// +optional
	HostPath *HostPathVolume `json:"hostPath,omitempty" protobuf:"bytes,5,opt,name=hostPath"`
}

// EmptyDirVolume lives as long as its instance.
type EmptyDirVolume struct {
	// inMemory uses a tmpfs.
	// +optional
	InMemory bool `json:"inMemory,omitempty" protobuf:"varint,1,opt,name=inMemory"`
	// sizeLimitBytes bounds it; enforced for inMemory only, hence refused otherwise.
	// +optional
	SizeLimitBytes int64 `json:"sizeLimitBytes,omitempty" protobuf:"varint,2,opt,name=sizeLimitBytes"`
}

// ObjectVolume holds the keys of a ConfigMap or Secret as files.
type ObjectVolume struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// items chooses keys and their paths; all keys when empty.
	// +optional
	// +listType=atomic
	Items []KeyToPath `json:"items,omitempty" protobuf:"bytes,2,rep,name=items"`
	// mode of the files, 0644 by default (0400 for secrets).
	// +optional
	Mode *int32 `json:"mode,omitempty" protobuf:"varint,3,opt,name=mode"`
	// +optional
	Optional bool `json:"optional,omitempty" protobuf:"varint,4,opt,name=optional"`
}

// KeyToPath puts a key at a relative path.
type KeyToPath struct {
	Key  string `json:"key" protobuf:"bytes,1,opt,name=key"`
	Path string `json:"path" protobuf:"bytes,2,opt,name=path"`
}

// HostPathVolume is a path of the node.
type HostPathVolume struct {
	Path string `json:"path" protobuf:"bytes,1,opt,name=path"`
	// create makes a missing directory.
	// +optional
	Create bool `json:"create,omitempty" protobuf:"varint,2,opt,name=create"`
}

// VolumeMount puts a volume into a container.
type VolumeMount struct {
	Name      string `json:"name" protobuf:"bytes,1,opt,name=name"`
	MountPath string `json:"mountPath" protobuf:"bytes,2,opt,name=mountPath"`
	// subPath inside the volume; relative, without "..".
	// +optional
	SubPath string `json:"subPath,omitempty" protobuf:"bytes,3,opt,name=subPath"`
	// +optional
	ReadOnly bool `json:"readOnly,omitempty" protobuf:"varint,4,opt,name=readOnly"`
}

// Function is a microVM.
type Function struct {
	Execution FunctionExecution `json:"execution" protobuf:"bytes,1,opt,name=execution"`
	// +optional
	Exposure *Port `json:"exposure,omitempty" protobuf:"bytes,2,opt,name=exposure"`
	// +optional
	Resources Resources `json:"resources,omitempty" protobuf:"bytes,3,opt,name=resources"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty" protobuf:"bytes,4,rep,name=env"`
	// envFrom takes every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,5,rep,name=envFrom"`
	// livenessProbe restarts the process when it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,6,opt,name=livenessProbe"`
	// readinessProbe decides whether the instance is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,7,opt,name=readinessProbe"`
	// startupProbe holds the other two until it succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,8,opt,name=startupProbe"`
}

// FunctionExecution says what a microVM runs. Exactly one of rootfs and image
// is set.
type FunctionExecution struct {
	// rootfs is the URL of a root file system.
	// +optional
	Rootfs string `json:"rootfs,omitempty" protobuf:"bytes,1,opt,name=rootfs"`
	// sha256 of what rootfs names, in hex.
	// +optional
	SHA256 string `json:"sha256,omitempty" protobuf:"bytes,2,opt,name=sha256"`
	// image is any OCI image that a Pod could run.
	// +optional
	Image string `json:"image,omitempty" protobuf:"bytes,3,opt,name=image"`
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty" protobuf:"bytes,4,rep,name=command"`
	// +optional
	// +listType=atomic
	Args []string `json:"args,omitempty" protobuf:"bytes,5,rep,name=args"`
	// workingDir inside the root. Defaults to the image's.
	// +optional
	WorkingDir string `json:"workingDir,omitempty" protobuf:"bytes,6,opt,name=workingDir"`
	// user as "name", "uid" or either with ":group". Defaults to the image's.
	// +optional
	User string `json:"user,omitempty" protobuf:"bytes,7,opt,name=user"`
}

// App is a plain process.
type App struct {
	// repo is an https archive or a local path.
	Repo string `json:"repo" protobuf:"bytes,1,opt,name=repo"`
	// +optional
	Version string `json:"version,omitempty" protobuf:"bytes,2,opt,name=version"`
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty" protobuf:"bytes,3,rep,name=command"`
	// +optional
	// +listType=atomic
	Args []string `json:"args,omitempty" protobuf:"bytes,4,rep,name=args"`
	// +optional
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty" protobuf:"bytes,5,rep,name=env"`
	// +optional
	User string `json:"user,omitempty" protobuf:"bytes,6,opt,name=user"`
	// +optional
	Resources Resources `json:"resources,omitempty" protobuf:"bytes,7,opt,name=resources"`
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []Port `json:"ports,omitempty" protobuf:"bytes,8,rep,name=ports"`
	// envFrom takes every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,9,rep,name=envFrom"`
	// livenessProbe restarts the process when it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,10,opt,name=livenessProbe"`
	// readinessProbe decides whether the instance is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,11,opt,name=readinessProbe"`
	// startupProbe holds the other two until it succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,12,opt,name=startupProbe"`
}

// Affinity attracts instances to nodes or to and from other instances.
type Affinity struct {
	// nodeRequired: at least one term must match the node's labels.
	// +optional
	// +listType=atomic
	NodeRequired []NodeTerm `json:"nodeRequired,omitempty" protobuf:"bytes,1,rep,name=nodeRequired"`
	// nodePreferred adds weight for each term that matches.
	// +optional
	// +listType=atomic
	NodePreferred []WeightedNodeTerm `json:"nodePreferred,omitempty" protobuf:"bytes,2,rep,name=nodePreferred"`
	// instanceRequired: an instance that matches must run in the same topology.
	// +optional
	// +listType=atomic
	InstanceRequired []InstanceTerm `json:"instanceRequired,omitempty" protobuf:"bytes,3,rep,name=instanceRequired"`
	// instanceForbidden: no instance that matches may run in the same topology.
	// +optional
	// +listType=atomic
	InstanceForbidden []InstanceTerm `json:"instanceForbidden,omitempty" protobuf:"bytes,4,rep,name=instanceForbidden"`
}

// NodeTerm matches a node whose labels fulfill all expressions.
type NodeTerm struct {
	// +listType=atomic
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions" protobuf:"bytes,1,rep,name=matchExpressions"`
}

// WeightedNodeTerm is a preference.
type WeightedNodeTerm struct {
	// weight from 1 to 100.
	Weight int32    `json:"weight" protobuf:"varint,1,opt,name=weight"`
	Term   NodeTerm `json:"term" protobuf:"bytes,2,opt,name=term"`
}

// InstanceTerm matches instances of the same namespace by their labels.
type InstanceTerm struct {
	Selector metav1.LabelSelector `json:"selector" protobuf:"bytes,1,opt,name=selector"`
	// topologyKey is the node label that makes two nodes the same place.
	TopologyKey string `json:"topologyKey" protobuf:"bytes,2,opt,name=topologyKey"`
}

// TopologySpread keeps the workload's instances spread over a node label.
type TopologySpread struct {
	// maxSkew is the largest difference between two places. At least 1.
	MaxSkew     int32  `json:"maxSkew" protobuf:"varint,1,opt,name=maxSkew"`
	TopologyKey string `json:"topologyKey" protobuf:"bytes,2,opt,name=topologyKey"`
	// whenUnsatisfiable is DoNotSchedule (default) or ScheduleAnyway.
	// +optional
	// +default="DoNotSchedule"
	WhenUnsatisfiable SpreadAction `json:"whenUnsatisfiable,omitempty" protobuf:"bytes,3,opt,name=whenUnsatisfiable,casttype=SpreadAction"`
}

// SpreadAction says what happens when a spread cannot be kept.
type SpreadAction string

const (
	// DoNotSchedule leaves the instance Pending.
	DoNotSchedule SpreadAction = "DoNotSchedule"
	// ScheduleAnyway only prefers the better place.
	ScheduleAnyway SpreadAction = "ScheduleAnyway"
)

// TaintEffect says what a taint does to instances that do not tolerate it.
type TaintEffect string

const (
	// TaintNoSchedule places none on the node.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintPreferNoSchedule places them elsewhere if it can.
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	// TaintNoExecute also replaces those that run there.
	TaintNoExecute TaintEffect = "NoExecute"
)

// Taint repels instances from a node.
type Taint struct {
	Key string `json:"key" protobuf:"bytes,1,opt,name=key"`
	// +optional
	Value  string      `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
	Effect TaintEffect `json:"effect" protobuf:"bytes,3,opt,name=effect,casttype=TaintEffect"`
}

// TolerationOperator compares a toleration with a taint.
type TolerationOperator string

const (
	// TolerationExists matches any value.
	TolerationExists TolerationOperator = "Exists"
	// TolerationEqual matches the same value.
	TolerationEqual TolerationOperator = "Equal"
)

// Toleration lets an instance on a tainted node.
type Toleration struct {
	// key of the taint; empty with operator Exists tolerates everything.
	// +optional
	Key string `json:"key,omitempty" protobuf:"bytes,1,opt,name=key"`
	// operator is Equal (default) or Exists.
	// +optional
	Operator TolerationOperator `json:"operator,omitempty" protobuf:"bytes,2,opt,name=operator,casttype=TolerationOperator"`
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,3,opt,name=value"`
	// effect; empty matches every effect.
	// +optional
	Effect TaintEffect `json:"effect,omitempty" protobuf:"bytes,4,opt,name=effect,casttype=TaintEffect"`
}

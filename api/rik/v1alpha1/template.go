package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RestartPolicy is when the riklet restarts a container that ended.
type RestartPolicy string

const (
	// RestartAlways restarts a container after any exit code.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure restarts a container after an exit code other than 0.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever does not restart a container. The user gets its error.
	RestartNever RestartPolicy = "Never"
)

// DisconnectPolicy is what a node does with an instance while it is disconnected from the
// controller.
type DisconnectPolicy string

const (
	// DisconnectKeep keeps the instance running.
	DisconnectKeep DisconnectPolicy = "Keep"
	// DisconnectStop stops the instance, so that it never runs at the same time as its
	// replacement.
	DisconnectStop DisconnectPolicy = "Stop"
)

// InstanceTemplate describes an instance. It is the part of a Workload that a WorkloadRevision
// copies.
type InstanceTemplate struct {
	// kind is Pod (default), Function or App.
	// +optional
	Kind WorkloadKind `json:"kind,omitempty" protobuf:"bytes,1,opt,name=kind,casttype=WorkloadKind"`
	// annotations are copied to the instances.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty" protobuf:"bytes,2,rep,name=annotations"`
	// labels are copied to the instances, in addition to rik's own labels.
	// +optional
	Labels map[string]string `json:"labels,omitempty" protobuf:"bytes,3,rep,name=labels"`
	// containers of a Pod. A Pod has at least one. Other kinds have none.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Containers []Container `json:"containers,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,4,rep,name=containers"`
	// initContainers run one after another, before the containers.
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
	// volumes that the containers can mount.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Volumes []Volume `json:"volumes,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,8,rep,name=volumes"`
	// restartPolicy is Always (default), OnFailure or Never.
	// +optional
	RestartPolicy RestartPolicy `json:"restartPolicy,omitempty" protobuf:"bytes,9,opt,name=restartPolicy,casttype=RestartPolicy"`
	// terminationGracePeriodSeconds is the time between the stop signal and SIGKILL. Defaults to
	// 30.
	// +optional
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty" protobuf:"varint,10,opt,name=terminationGracePeriodSeconds"`
	// hostNetwork runs the instance in its node's network. It needs the verb privileged.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty" protobuf:"varint,11,opt,name=hostNetwork"`
	// hostname is the host name inside the instance. Defaults to the instance's name.
	// +optional
	Hostname string `json:"hostname,omitempty" protobuf:"bytes,12,opt,name=hostname"`
	// runtime is the name of an OCI runtime of the node. Defaults to runc.
	// +optional
	Runtime string `json:"runtime,omitempty" protobuf:"bytes,13,opt,name=runtime"`
	// imagePullSecrets name Secrets of type kubernetes.io/dockerconfigjson in
	// the workload's namespace.
	// +optional
	// +listType=set
	ImagePullSecrets []string `json:"imagePullSecrets,omitempty" protobuf:"bytes,14,rep,name=imagePullSecrets"`
	// onDisconnect is what the node does with the instance while it is disconnected from the
	// controller: Keep (default) or Stop.
	// +optional
	OnDisconnect DisconnectPolicy `json:"onDisconnect,omitempty" protobuf:"bytes,15,opt,name=onDisconnect,casttype=DisconnectPolicy"`
	// nodeSelector has the labels that the instance's node must have.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty" protobuf:"bytes,16,rep,name=nodeSelector"`
	// affinity attracts the instance to nodes and other instances, or keeps it apart from other
	// instances.
	// +optional
	Affinity *Affinity `json:"affinity,omitempty" protobuf:"bytes,17,opt,name=affinity"`
	// tolerations let the instance run on nodes with these taints.
	// +optional
	// +listType=atomic
	Tolerations []Toleration `json:"tolerations,omitempty" protobuf:"bytes,18,rep,name=tolerations"`
	// topologySpread spreads the instances over groups of nodes.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpread []TopologySpread `json:"topologySpread,omitempty" protobuf:"bytes,19,rep,name=topologySpread"`
	// priority orders instances. Instances of a higher priority are placed first, and may preempt
	// those of a lower one. Defaults to 0. A priority above 0 needs the verb privileged.
	// +optional
	Priority int32 `json:"priority,omitempty" protobuf:"varint,20,opt,name=priority"`
	// isolation of a Pod is container (default) or microvm. With microvm its containers run in a
	// virtual machine with its own kernel. A Function always runs in a microVM, an App never.
	// +optional
	Isolation Isolation `json:"isolation,omitempty" protobuf:"bytes,21,opt,name=isolation,casttype=Isolation"`
	// rateLimits limit the disk and network transfers of a microVM.
	// +optional
	RateLimits *RateLimits `json:"rateLimits,omitempty" protobuf:"bytes,22,opt,name=rateLimits"`
}

// Isolation is what isolates an instance from its node.
type Isolation string

const (
	// IsolationContainer isolates with the namespaces of the node's kernel.
	IsolationContainer Isolation = "container"
	// IsolationMicroVM isolates with a virtual machine.
	IsolationMicroVM Isolation = "microvm"
)

// RateLimits limit a microVM's devices. 0 means no limit, and so does a field that is not set.
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

// PullPolicy is when an image is pulled.
type PullPolicy string

const (
	// PullAlways resolves the reference again at every start.
	PullAlways PullPolicy = "Always"
	// PullIfNotPresent uses the image that the node has, if it has one.
	PullIfNotPresent PullPolicy = "IfNotPresent"
	// PullNever fails if the node does not have the image.
	PullNever PullPolicy = "Never"
)

// Container is one container of a Pod.
type Container struct {
	// name is a DNS label, unique in the workload.
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// image is a reference with one of the transports docker:// (default), oci:, oci-archive:,
	// docker-archive: or dir:.
	Image string `json:"image" protobuf:"bytes,2,opt,name=image"`
	// imagePullPolicy is IfNotPresent, Always or Never. Defaults to IfNotPresent, and to Always
	// for the tag latest of a registry.
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
	// workingDir is the working directory inside the container. Defaults to the image's.
	// +optional
	WorkingDir string `json:"workingDir,omitempty" protobuf:"bytes,6,opt,name=workingDir"`
	// user is "name" or "uid", and either can be followed by ":group". Defaults to the image's.
	// +optional
	User string `json:"user,omitempty" protobuf:"bytes,7,opt,name=user"`
	// env are environment variables with unique names. $(NAME) in a value refers to an earlier
	// one.
	// +optional
	// +patchMergeKey=name
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty" patchStrategy:"merge" patchMergeKey:"name" protobuf:"bytes,8,rep,name=env"`
	// envFrom sets a variable for every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,9,rep,name=envFrom"`
	// ports that the container serves.
	// +optional
	// +listType=map
	// +listMapKey=port
	// +listMapKey=protocol
	Ports []Port `json:"ports,omitempty" protobuf:"bytes,10,rep,name=ports"`
	// resources are what the container needs, and the most that it may use.
	// +optional
	Resources Resources `json:"resources,omitempty" protobuf:"bytes,11,opt,name=resources"`
	// volumeMounts mount volumes in the container's file system.
	// +optional
	// +patchMergeKey=mountPath
	// +patchStrategy=merge
	// +listType=map
	// +listMapKey=mountPath
	VolumeMounts []VolumeMount `json:"volumeMounts,omitempty" patchStrategy:"merge" patchMergeKey:"mountPath" protobuf:"bytes,12,rep,name=volumeMounts"`
	// livenessProbe restarts the container if it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,13,opt,name=livenessProbe"`
	// readinessProbe decides whether the container is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,14,opt,name=readinessProbe"`
	// startupProbe delays the other two probes until it has succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,15,opt,name=startupProbe"`
	// security adds to or removes from the permissions of the processes.
	// +optional
	Security *Security `json:"security,omitempty" protobuf:"bytes,16,opt,name=security"`
	// tty starts the process with a terminal.
	// +optional
	TTY bool `json:"tty,omitempty" protobuf:"varint,17,opt,name=tty"`
}

// Security is how a container's permissions differ from the safe default.
type Security struct {
	// readOnlyRootFilesystem mounts the root read-only.
	// +optional
	ReadOnlyRootFilesystem bool `json:"readOnlyRootFilesystem,omitempty" protobuf:"varint,1,opt,name=readOnlyRootFilesystem"`
	// addCapabilities are added to the default set, such as NET_ADMIN. They need the verb
	// privileged.
	// +optional
	// +listType=set
	AddCapabilities []string `json:"addCapabilities,omitempty" protobuf:"bytes,2,rep,name=addCapabilities"`
	// dropCapabilities are removed from the default set. ALL removes all of them.
	// +optional
	// +listType=set
	DropCapabilities []string `json:"dropCapabilities,omitempty" protobuf:"bytes,3,rep,name=dropCapabilities"`
	// privileged removes all protections. It needs the verb privileged.
	// +optional
	Privileged bool `json:"privileged,omitempty" protobuf:"varint,4,opt,name=privileged"`
	// runAsNonRoot refuses to start the container as user 0. This applies to the container's
	// user, and to the image's user if the container has none.
	// +optional
	RunAsNonRoot bool `json:"runAsNonRoot,omitempty" protobuf:"varint,5,opt,name=runAsNonRoot"`
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,2,opt,name=value"`
	// valueFrom is the source of the value. It cannot be used together with value.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty" protobuf:"bytes,3,opt,name=valueFrom"`
}

// EnvVarSource is the source of a variable's value. Exactly one field is set.
type EnvVarSource struct {
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty" protobuf:"bytes,1,opt,name=configMapKeyRef"`
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty" protobuf:"bytes,2,opt,name=secretKeyRef"`
	// fieldRef is the path of a field of the instance. It is one of metadata.name,
	// metadata.namespace, metadata.uid, spec.nodeName, status.address and status.hostAddress.
	// +optional
	FieldRef string `json:"fieldRef,omitempty" protobuf:"bytes,3,opt,name=fieldRef"`
}

// KeyRef refers to a key of a ConfigMap or Secret in the same namespace.
type KeyRef struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	Key  string `json:"key" protobuf:"bytes,2,opt,name=key"`
	// +optional
	Optional bool `json:"optional,omitempty" protobuf:"varint,3,opt,name=optional"`
}

// EnvFromSource refers to a ConfigMap or a Secret. Exactly one of them is set.
type EnvFromSource struct {
	// prefix is added in front of every key.
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

// PortType is from where a port can be reached.
type PortType string

const (
	// PortClusterIP is reachable inside the cluster.
	PortClusterIP PortType = "clusterIP"
	// PortNodePort is reachable on every node's addresses.
	PortNodePort PortType = "nodePort"
	// PortLoadBalancer is reachable on an external address.
	PortLoadBalancer PortType = "loadBalancer"
)

// Port is one port that an instance serves.
type Port struct {
	// +optional
	Name string `json:"name,omitempty" protobuf:"bytes,1,opt,name=name"`
	// port is the port that clients use.
	Port int32 `json:"port" protobuf:"varint,2,opt,name=port"`
	// targetPort is the port on which the process listens. Defaults to port.
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

// ResourceName is the name of a resource of which a node has an amount.
type ResourceName string

const (
	// ResourceCPU is processor time in cores.
	ResourceCPU ResourceName = "cpu"
	// ResourceMemory is memory in bytes.
	ResourceMemory ResourceName = "memory"
	// ResourceDisk is disk space in bytes.
	ResourceDisk ResourceName = "disk"
	// ResourceInstances is a number of instances, in a node's capacity and in quotas.
	ResourceInstances ResourceName = "instances"
)

// Resources are what a container reserves, and the most that it may use.
type Resources struct {
	// requests are reserved on the node. They default to limits.
	// +optional
	Requests ResourceList `json:"requests,omitempty" protobuf:"bytes,1,rep,name=requests,casttype=ResourceList,castkey=ResourceName"`
	// limits are enforced by the kernel.
	// +optional
	Limits ResourceList `json:"limits,omitempty" protobuf:"bytes,2,rep,name=limits,casttype=ResourceList,castkey=ResourceName"`
}

// Probe checks a container. Exactly one of exec, tcp and http is set.
type Probe struct {
	// +optional
	Exec *ExecProbe `json:"exec,omitempty" protobuf:"bytes,1,opt,name=exec"`
	// +optional
	TCP *TCPProbe `json:"tcp,omitempty" protobuf:"bytes,2,opt,name=tcp"`
	// +optional
	HTTP *HTTPProbe `json:"http,omitempty" protobuf:"bytes,3,opt,name=http"`
	// initialDelaySeconds is the delay before the first check. Defaults to 0.
	// +optional
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty" protobuf:"varint,4,opt,name=initialDelaySeconds"`
	// periodSeconds is the time between two checks. Defaults to 10.
	// +optional
	PeriodSeconds int32 `json:"periodSeconds,omitempty" protobuf:"varint,5,opt,name=periodSeconds"`
	// timeoutSeconds is the timeout of one check. Defaults to 1.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty" protobuf:"varint,6,opt,name=timeoutSeconds"`
	// successThreshold is the number of successes in a row after which the probe has succeeded.
	// Defaults to 1.
	// +optional
	SuccessThreshold int32 `json:"successThreshold,omitempty" protobuf:"varint,7,opt,name=successThreshold"`
	// failureThreshold is the number of failures in a row after which the probe has failed.
	// Defaults to 3.
	// +optional
	FailureThreshold int32 `json:"failureThreshold,omitempty" protobuf:"varint,8,opt,name=failureThreshold"`
}

// ExecProbe succeeds if a command in the container exits with 0.
type ExecProbe struct {
	// +listType=atomic
	Command []string `json:"command" protobuf:"bytes,1,rep,name=command"`
}

// TCPProbe succeeds if a connection is accepted.
type TCPProbe struct {
	Port int32 `json:"port" protobuf:"varint,1,opt,name=port"`
}

// HTTPProbe succeeds on a status from 200 to 399.
type HTTPProbe struct {
	// +optional
	Path string `json:"path,omitempty" protobuf:"bytes,1,opt,name=path"`
	Port int32  `json:"port" protobuf:"varint,2,opt,name=port"`
	// scheme is HTTP (default) or HTTPS. The certificate is not verified.
	// +optional
	Scheme string `json:"scheme,omitempty" protobuf:"bytes,3,opt,name=scheme"`
	// +optional
	Headers map[string]string `json:"headers,omitempty" protobuf:"bytes,4,rep,name=headers"`
}

// Volume is a directory that containers can mount. Exactly one source is set.
type Volume struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// +optional
	EmptyDir *EmptyDirVolume `json:"emptyDir,omitempty" protobuf:"bytes,2,opt,name=emptyDir"`
	// +optional
	ConfigMap *ObjectVolume `json:"configMap,omitempty" protobuf:"bytes,3,opt,name=configMap"`
	// +optional
	Secret *ObjectVolume `json:"secret,omitempty" protobuf:"bytes,4,opt,name=secret"`
	// hostPath is a path of the node. It needs the verb privileged.
	// +optional
	HostPath *HostPathVolume `json:"hostPath,omitempty" protobuf:"bytes,5,opt,name=hostPath"`
}

// EmptyDirVolume is an empty directory that exists as long as its instance.
type EmptyDirVolume struct {
	// inMemory uses a tmpfs instead of the disk.
	// +optional
	InMemory bool `json:"inMemory,omitempty" protobuf:"varint,1,opt,name=inMemory"`
	// sizeLimitBytes is the size. It is allowed only with inMemory.
	// +optional
	SizeLimitBytes int64 `json:"sizeLimitBytes,omitempty" protobuf:"varint,2,opt,name=sizeLimitBytes"`
}

// ObjectVolume has the keys of a ConfigMap or Secret as files.
type ObjectVolume struct {
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`
	// items selects keys and sets their paths. If it is empty, all keys are files.
	// +optional
	// +listType=atomic
	Items []KeyToPath `json:"items,omitempty" protobuf:"bytes,2,rep,name=items"`
	// mode is the mode of the files: 0644 by default, 0400 for Secrets.
	// +optional
	Mode *int32 `json:"mode,omitempty" protobuf:"varint,3,opt,name=mode"`
	// +optional
	Optional bool `json:"optional,omitempty" protobuf:"varint,4,opt,name=optional"`
}

// KeyToPath sets the relative path of a key.
type KeyToPath struct {
	Key  string `json:"key" protobuf:"bytes,1,opt,name=key"`
	Path string `json:"path" protobuf:"bytes,2,opt,name=path"`
}

// HostPathVolume is a path of the node.
type HostPathVolume struct {
	Path string `json:"path" protobuf:"bytes,1,opt,name=path"`
	// create creates the directory if it is missing.
	// +optional
	Create bool `json:"create,omitempty" protobuf:"varint,2,opt,name=create"`
}

// VolumeMount mounts a volume in a container.
type VolumeMount struct {
	Name      string `json:"name" protobuf:"bytes,1,opt,name=name"`
	MountPath string `json:"mountPath" protobuf:"bytes,2,opt,name=mountPath"`
	// subPath is a path inside the volume. It is relative and has no "..".
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
	// envFrom sets a variable for every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,5,rep,name=envFrom"`
	// livenessProbe restarts the process if it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,6,opt,name=livenessProbe"`
	// readinessProbe decides whether the instance is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,7,opt,name=readinessProbe"`
	// startupProbe delays the other two probes until it has succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,8,opt,name=startupProbe"`
}

// FunctionExecution is what a microVM runs. Exactly one of rootfs and image is set.
type FunctionExecution struct {
	// rootfs is the URL of a root file system.
	// +optional
	Rootfs string `json:"rootfs,omitempty" protobuf:"bytes,1,opt,name=rootfs"`
	// sha256 is the checksum of the file at rootfs, in hexadecimal.
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
	// workingDir is the working directory inside the root. Defaults to the image's.
	// +optional
	WorkingDir string `json:"workingDir,omitempty" protobuf:"bytes,6,opt,name=workingDir"`
	// user is "name" or "uid", and either can be followed by ":group". Defaults to the image's.
	// +optional
	User string `json:"user,omitempty" protobuf:"bytes,7,opt,name=user"`
}

// App is a plain process.
type App struct {
	// repo is the https URL of an archive, or a local path.
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
	// envFrom sets a variable for every key of a ConfigMap or Secret.
	// +optional
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty" protobuf:"bytes,9,rep,name=envFrom"`
	// livenessProbe restarts the process if it fails.
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty" protobuf:"bytes,10,opt,name=livenessProbe"`
	// readinessProbe decides whether the instance is ready.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty" protobuf:"bytes,11,opt,name=readinessProbe"`
	// startupProbe delays the other two probes until it has succeeded once.
	// +optional
	StartupProbe *Probe `json:"startupProbe,omitempty" protobuf:"bytes,12,opt,name=startupProbe"`
}

// Affinity attracts instances to nodes or to other instances, or keeps them apart from other
// instances.
type Affinity struct {
	// nodeRequired are terms of which at least one must match the node's labels.
	// +optional
	// +listType=atomic
	NodeRequired []NodeTerm `json:"nodeRequired,omitempty" protobuf:"bytes,1,rep,name=nodeRequired"`
	// nodePreferred adds the weight of each matching term to the node's score.
	// +optional
	// +listType=atomic
	NodePreferred []WeightedNodeTerm `json:"nodePreferred,omitempty" protobuf:"bytes,2,rep,name=nodePreferred"`
	// instanceRequired are terms. For each one, a matching instance must run in the same
	// topology.
	// +optional
	// +listType=atomic
	InstanceRequired []InstanceTerm `json:"instanceRequired,omitempty" protobuf:"bytes,3,rep,name=instanceRequired"`
	// instanceForbidden are terms. No matching instance may run in the same topology.
	// +optional
	// +listType=atomic
	InstanceForbidden []InstanceTerm `json:"instanceForbidden,omitempty" protobuf:"bytes,4,rep,name=instanceForbidden"`
}

// NodeTerm matches a node whose labels fulfill all expressions.
type NodeTerm struct {
	// +listType=atomic
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions" protobuf:"bytes,1,rep,name=matchExpressions"`
}

// WeightedNodeTerm is a preference for nodes.
type WeightedNodeTerm struct {
	// weight is a number from 1 to 100.
	Weight int32    `json:"weight" protobuf:"varint,1,opt,name=weight"`
	Term   NodeTerm `json:"term" protobuf:"bytes,2,opt,name=term"`
}

// InstanceTerm matches instances of the same namespace by their labels.
type InstanceTerm struct {
	Selector metav1.LabelSelector `json:"selector" protobuf:"bytes,1,opt,name=selector"`
	// topologyKey is a node label. Nodes with the same value of it are the same place.
	TopologyKey string `json:"topologyKey" protobuf:"bytes,2,opt,name=topologyKey"`
}

// TopologySpread spreads the workload's instances over the values of a node label.
type TopologySpread struct {
	// maxSkew is the largest allowed difference in instances between two values of the label. It
	// is at least 1.
	MaxSkew     int32  `json:"maxSkew" protobuf:"varint,1,opt,name=maxSkew"`
	TopologyKey string `json:"topologyKey" protobuf:"bytes,2,opt,name=topologyKey"`
	// whenUnsatisfiable is DoNotSchedule (default) or ScheduleAnyway.
	// +optional
	// +default="DoNotSchedule"
	WhenUnsatisfiable SpreadAction `json:"whenUnsatisfiable,omitempty" protobuf:"bytes,3,opt,name=whenUnsatisfiable,casttype=SpreadAction"`
}

// SpreadAction is what happens if a spread is not possible.
type SpreadAction string

const (
	// DoNotSchedule leaves the instance Pending.
	DoNotSchedule SpreadAction = "DoNotSchedule"
	// ScheduleAnyway places the instance, and prefers nodes with the better spread.
	ScheduleAnyway SpreadAction = "ScheduleAnyway"
)

// TaintEffect is the effect of a taint on instances that do not tolerate it.
type TaintEffect string

const (
	// TaintNoSchedule places no such instance on the node.
	TaintNoSchedule TaintEffect = "NoSchedule"
	// TaintPreferNoSchedule places them on other nodes if possible.
	TaintPreferNoSchedule TaintEffect = "PreferNoSchedule"
	// TaintNoExecute also replaces those that run on the node.
	TaintNoExecute TaintEffect = "NoExecute"
)

// Taint keeps instances away from a node.
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

// Toleration lets an instance run on a tainted node.
type Toleration struct {
	// key is the key of the taint. An empty key with the operator Exists tolerates all taints.
	// +optional
	Key string `json:"key,omitempty" protobuf:"bytes,1,opt,name=key"`
	// operator is Equal (default) or Exists.
	// +optional
	Operator TolerationOperator `json:"operator,omitempty" protobuf:"bytes,2,opt,name=operator,casttype=TolerationOperator"`
	// +optional
	Value string `json:"value,omitempty" protobuf:"bytes,3,opt,name=value"`
	// effect is the effect of the taint. An empty effect matches all effects.
	// +optional
	Effect TaintEffect `json:"effect,omitempty" protobuf:"bytes,4,opt,name=effect,casttype=TaintEffect"`
}

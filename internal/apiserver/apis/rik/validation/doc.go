// Package validation validates the objects of rik.dev after defaulting. All other parts of rik
// rely on its results. Names are safe as parts of paths, and numbers are in their ranges.
// References resolve within the object. This version ignores no field.
//
// All functions are pure. They do not panic for any input.
package validation

// The limits of one object. They keep an object below etcd's limit of 1.5 MiB, and limit a node's
// work for one instance. Each is far above the needs of a real workload.
const (
	MaxContainers      = 64
	MaxEnv             = 1024
	MaxEnvFrom         = 64
	MaxPorts           = 256
	MaxVolumes         = 64
	MaxVolumeMounts    = 128
	MaxVolumeItems     = 1024
	MaxPullSecrets     = 16
	MaxTolerations     = 64
	MaxTerms           = 64
	MaxHeaders         = 64
	MaxTaints          = 64
	MaxTenantUsers     = 256
	MaxTenantRules     = 64
	MaxWordBytes       = 128<<10 - 1 // of an argument, or a variable with its name: MAX_ARG_STRLEN without the NUL
	MaxTextBytes       = 256 << 10   // of all arguments or all variables of a container
	MaxTenantValue     = 64 << 10
	MaxPathBytes       = 4096 // PATH_MAX
	MaxReplicas        = 1_000_000
	MaxGraceSeconds    = 24 * 3600
	MaxSeconds         = 30 * 24 * 3600
	MaxProbeSeconds    = 24 * 3600
	MaxProbeThreshold  = 1000
	MaxHistory         = 1000
	MaxPriority        = 1_000_000_000
	MaxSkew            = 10_000
	MaxNameInNamespace = 63
)

// Lists has the maximum length of each list by the name of its field, in any object. The server
// checks it before it decodes an object.
var Lists = map[string]int{
	"containers": MaxContainers, "initContainers": MaxContainers, "env": MaxEnv, "envFrom": MaxEnvFrom, "ports": MaxPorts,
	"volumes": MaxVolumes, "volumeMounts": MaxVolumeMounts, "imagePullSecrets": MaxPullSecrets, "tolerations": MaxTolerations,
	"taints": MaxTaints, "users": MaxTenantUsers,
}

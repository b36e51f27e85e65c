// Package validation judges the objects of rik.dev as they are after
// defaulting. What it lets through, every other part of rik may take for
// granted: names that are safe as parts of paths, numbers in range, references
// that resolve within the object, and no field that this version would
// silently ignore.
//
// All functions are pure and never panic, whatever they are given.
package validation

// Bounds on what one object may hold. They keep an object well under etcd's
// 1.5 MiB and a node's work for one instance finite; none is near what a real
// workload needs.
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
	MaxWordBytes       = 128<<10 - 1 // MAX_ARG_STRLEN without the NUL: one argument, or one variable with its name
	MaxTextBytes       = 256 << 10   // of all arguments, or all variables, of a container
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

// Lists are the bounds of lists by their field's name, wherever it is. They are known
// before an object is decoded.
var Lists = map[string]int{
	"containers": MaxContainers, "initContainers": MaxContainers, "env": MaxEnv, "envFrom": MaxEnvFrom, "ports": MaxPorts,
	"volumes": MaxVolumes, "volumeMounts": MaxVolumeMounts, "imagePullSecrets": MaxPullSecrets, "tolerations": MaxTolerations,
	"taints": MaxTaints, "users": MaxTenantUsers,
}

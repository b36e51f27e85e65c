package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/reference"
)

// The default values of fields. The elements of a list that is merged as a whole have no defaults.
// Otherwise the stored list would differ from the applied one, and the next apply of the same
// file would conflict with its own manager.
const (
	DefaultReplicas                = 1
	DefaultRolloutShare            = "25%"
	DefaultProgressDeadlineSeconds = 600
	DefaultRevisionHistoryLimit    = 10
	DefaultDisruption              = 1
	DefaultTerminationGraceSeconds = 30
	DefaultProbePeriodSeconds      = 10
	DefaultProbeTimeoutSeconds     = 1
	DefaultProbeSuccessThreshold   = 1
	DefaultProbeFailureThreshold   = 3
	DefaultConfigMapMode           = 0o644
	DefaultSecretMode              = 0o400
)

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func fillPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// SetDefaults_WorkloadSpec sets the number of instances and how a rollout replaces them.
func SetDefaults_WorkloadSpec(s *rikv1alpha1.WorkloadSpec) {
	fill(&s.Deploy, rikv1alpha1.DeployManual)
	fillPointer(&s.Replicas, DefaultReplicas)
	fillPointer(&s.RevisionHistoryLimit, DefaultRevisionHistoryLimit)
	fillPointer(&s.Disruption.MaxUnavailable, intstr.FromInt32(DefaultDisruption))
	fill(&s.Strategy.Type, rikv1alpha1.RollingUpdate)
	fillPointer(&s.Strategy.ProgressDeadlineSeconds, DefaultProgressDeadlineSeconds)
	if s.Strategy.Type == rikv1alpha1.RollingUpdate {
		fillPointer(&s.Strategy.MaxSurge, intstr.FromString(DefaultRolloutShare))
		fillPointer(&s.Strategy.MaxUnavailable, intstr.FromString(DefaultRolloutShare))
	}
}

// SetDefaults_InstanceTemplate sets the kind, and how an instance restarts and stops.
func SetDefaults_InstanceTemplate(t *rikv1alpha1.InstanceTemplate) {
	fill(&t.Kind, rikv1alpha1.KindPod)
	fill(&t.RestartPolicy, rikv1alpha1.RestartAlways)
	fill(&t.OnDisconnect, rikv1alpha1.DisconnectKeep)
	fillPointer(&t.TerminationGracePeriodSeconds, DefaultTerminationGraceSeconds)
}

// SetDefaults_Container sets the pull policy. The node pulls a moving tag of a registry before each
// start. It pulls other images only if it does not have them.
func SetDefaults_Container(c *rikv1alpha1.Container) {
	if c.ImagePullPolicy != "" {
		return
	}
	c.ImagePullPolicy = rikv1alpha1.PullIfNotPresent
	if ref, err := reference.Parse(c.Image); err == nil && ref.Moving() {
		c.ImagePullPolicy = rikv1alpha1.PullAlways
	}
}

// SetDefaults_Port sets the target port, the protocol and the type.
func SetDefaults_Port(p *rikv1alpha1.Port) {
	fill(&p.TargetPort, p.Port)
	fill(&p.Protocol, rikv1alpha1.ProtocolTCP)
	fill(&p.Type, rikv1alpha1.PortClusterIP)
}

// SetDefaults_Probe sets the times and thresholds of a probe.
func SetDefaults_Probe(p *rikv1alpha1.Probe) {
	fill(&p.PeriodSeconds, DefaultProbePeriodSeconds)
	fill(&p.TimeoutSeconds, DefaultProbeTimeoutSeconds)
	fill(&p.SuccessThreshold, DefaultProbeSuccessThreshold)
	fill(&p.FailureThreshold, DefaultProbeFailureThreshold)
}

// SetDefaults_HTTPProbe sets the root path and plain HTTP.
func SetDefaults_HTTPProbe(p *rikv1alpha1.HTTPProbe) {
	fill(&p.Path, "/")
	fill(&p.Scheme, "HTTP")
}

// SetDefaults_Volume sets file modes. Other users cannot read the files of a Secret.
func SetDefaults_Volume(v *rikv1alpha1.Volume) {
	if v.ConfigMap != nil {
		fillPointer(&v.ConfigMap.Mode, DefaultConfigMapMode)
	}
	if v.Secret != nil {
		fillPointer(&v.Secret.Mode, DefaultSecretMode)
	}
}

// SetDefaults_TopologySpread makes a spread mandatory.
func SetDefaults_TopologySpread(s *rikv1alpha1.TopologySpread) {
	fill(&s.WhenUnsatisfiable, rikv1alpha1.DoNotSchedule)
}

// SetDefaults_TenantUser allows all verbs on all resources in the tenant's namespace.
func SetDefaults_TenantUser(u *rikv1alpha1.TenantUser) {
	if len(u.Verbs) == 0 {
		u.Verbs = []string{"*"}
	}
	if len(u.Resources) == 0 {
		u.Resources = []string{"*"}
	}
}

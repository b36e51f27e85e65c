package v1alpha1

import (
	"k8s.io/apimachinery/pkg/util/intstr"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik/reference"
)

// What a field is when its writer left it out. A list that is merged as a whole
// has no defaults in it: what its writer applies again would not be what is stored,
// and a conflict with themself.
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

// SetDefaults_WorkloadSpec fills how many instances there are and how they
// are replaced.
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

// SetDefaults_InstanceTemplate fills what an instance is made of.
func SetDefaults_InstanceTemplate(t *rikv1alpha1.InstanceTemplate) {
	fill(&t.Kind, rikv1alpha1.KindPod)
	fill(&t.RestartPolicy, rikv1alpha1.RestartAlways)
	fill(&t.OnDisconnect, rikv1alpha1.DisconnectKeep)
	fillPointer(&t.TerminationGracePeriodSeconds, DefaultTerminationGraceSeconds)
}

// SetDefaults_Container fills the pull policy: a moving tag of a registry is
// asked for again, anything else is taken from what the node has.
func SetDefaults_Container(c *rikv1alpha1.Container) {
	if c.ImagePullPolicy != "" {
		return
	}
	c.ImagePullPolicy = rikv1alpha1.PullIfNotPresent
	if ref, err := reference.Parse(c.Image); err == nil && ref.Moving() {
		c.ImagePullPolicy = rikv1alpha1.PullAlways
	}
}

// SetDefaults_Port fills what a port number alone does not say.
func SetDefaults_Port(p *rikv1alpha1.Port) {
	fill(&p.TargetPort, p.Port)
	fill(&p.Protocol, rikv1alpha1.ProtocolTCP)
	fill(&p.Type, rikv1alpha1.PortClusterIP)
}

// SetDefaults_Probe fills the rhythm of a probe.
func SetDefaults_Probe(p *rikv1alpha1.Probe) {
	fill(&p.PeriodSeconds, DefaultProbePeriodSeconds)
	fill(&p.TimeoutSeconds, DefaultProbeTimeoutSeconds)
	fill(&p.SuccessThreshold, DefaultProbeSuccessThreshold)
	fill(&p.FailureThreshold, DefaultProbeFailureThreshold)
}

// SetDefaults_HTTPProbe asks for the root page over plain HTTP.
func SetDefaults_HTTPProbe(p *rikv1alpha1.HTTPProbe) {
	fill(&p.Path, "/")
	fill(&p.Scheme, "HTTP")
}

// SetDefaults_Volume keeps the files of a secret from other users.
func SetDefaults_Volume(v *rikv1alpha1.Volume) {
	if v.ConfigMap != nil {
		fillPointer(&v.ConfigMap.Mode, DefaultConfigMapMode)
	}
	if v.Secret != nil {
		fillPointer(&v.Secret.Mode, DefaultSecretMode)
	}
}

// SetDefaults_TopologySpread makes a spread binding.
func SetDefaults_TopologySpread(s *rikv1alpha1.TopologySpread) {
	fill(&s.WhenUnsatisfiable, rikv1alpha1.DoNotSchedule)
}

// SetDefaults_TenantUser lets a user do everything in the tenant's namespace.
func SetDefaults_TenantUser(u *rikv1alpha1.TenantUser) {
	if len(u.Verbs) == 0 {
		u.Verbs = []string{"*"}
	}
	if len(u.Resources) == 0 {
		u.Resources = []string{"*"}
	}
}

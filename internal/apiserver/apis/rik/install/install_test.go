package install_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/install"
)

// fillers set the fields that have defaults, so that a round trip through a served version returns
// the same object.
func fillers(runtimeserializer.CodecFactory) []interface{} {
	return []interface{}{
		func(s *rik.WorkloadSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			one, limit, deadline := int32(1), int32(2), int32(3)
			share := intstr.FromString("10%")
			s.Deploy, s.Replicas, s.RevisionHistoryLimit = rik.DeployAutomatic, &one, &limit
			s.Strategy = rik.UpdateStrategy{Type: rik.RollingUpdate, MaxSurge: &share, MaxUnavailable: &share, ProgressDeadlineSeconds: &deadline}
			s.Disruption.MaxUnavailable = &share
		},
		func(t *rik.InstanceTemplate, c randfill.Continue) {
			c.FillNoCustom(t)
			grace := int64(4)
			t.Kind, t.RestartPolicy, t.OnDisconnect = rik.KindFunction, rik.RestartNever, rik.DisconnectStop
			t.TerminationGracePeriodSeconds = &grace
		},
		func(t *rik.Container, c randfill.Continue) {
			c.FillNoCustom(t)
			t.ImagePullPolicy = rik.PullNever
		},
		func(p *rik.Port, _ randfill.Continue) {
			*p = rik.Port{Name: "a", Port: 1, TargetPort: 2, Protocol: rik.ProtocolUDP, Type: rik.PortNodePort}
		},
		func(p *rik.Probe, _ randfill.Continue) {
			*p = rik.Probe{
				HTTP:          &rik.HTTPProbe{Path: "/x", Port: 1, Scheme: "HTTPS", Headers: map[string]string{"a": "b"}},
				PeriodSeconds: 5, TimeoutSeconds: 6, SuccessThreshold: 7, FailureThreshold: 8,
			}
		},
		func(v *rik.Volume, c randfill.Continue) {
			mode := int32(0o600)
			*v = rik.Volume{Name: c.String(0), Secret: &rik.ObjectVolume{Name: c.String(0), Mode: &mode}}
		},
		func(s *rik.TopologySpread, _ randfill.Continue) {
			*s = rik.TopologySpread{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: rik.ScheduleAnyway}
		},
		func(t *rik.Toleration, _ randfill.Continue) {
			*t = rik.Toleration{Key: "k", Operator: rik.TolerationExists}
		},
		func(u *rik.TenantUser, _ randfill.Continue) {
			*u = rik.TenantUser{Name: "ann", Verbs: []string{"get"}, Resources: []string{"workloads"}}
		},
	}
}

// TestRoundTrip converts random objects of each kind to JSON, YAML and protobuf and to the served
// version, and back.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	roundtrip.RoundTripTestForAPIGroup(t, install.Install, fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fillers))
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	w := &rikv1alpha1.Workload{Spec: rikv1alpha1.WorkloadSpec{InstanceTemplate: rikv1alpha1.InstanceTemplate{
		Containers: []rikv1alpha1.Container{
			{
				Name: "a", Image: "nginx", Ports: []rikv1alpha1.Port{{Port: 80}},
				LivenessProbe: &rikv1alpha1.Probe{HTTP: &rikv1alpha1.HTTPProbe{Port: 80}},
			},
			{Name: "b", Image: "oci:/srv/image:latest"},
		},
		Volumes:     []rikv1alpha1.Volume{{Name: "c", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "x"}}, {Name: "s", Secret: &rikv1alpha1.ObjectVolume{Name: "x"}}},
		Tolerations: []rikv1alpha1.Toleration{{Key: "k", Value: "v"}},
	}}}
	scheme.Default(w)

	replicas, limit, deadline, grace := int32(1), int32(10), int32(600), int64(30)
	open, closed := int32(0o644), int32(0o400)
	share, one := intstr.FromString("25%"), intstr.FromInt32(1)
	want := rikv1alpha1.WorkloadSpec{
		Deploy: rikv1alpha1.DeployManual, Replicas: &replicas, RevisionHistoryLimit: &limit,
		Strategy:   rikv1alpha1.UpdateStrategy{Type: rikv1alpha1.RollingUpdate, MaxSurge: &share, MaxUnavailable: &share, ProgressDeadlineSeconds: &deadline},
		Disruption: rikv1alpha1.Disruption{MaxUnavailable: &one},
		InstanceTemplate: rikv1alpha1.InstanceTemplate{
			Kind: rikv1alpha1.KindPod, RestartPolicy: rikv1alpha1.RestartAlways, OnDisconnect: rikv1alpha1.DisconnectKeep, TerminationGracePeriodSeconds: &grace,
			Containers: []rikv1alpha1.Container{
				{
					Name: "a", Image: "nginx", ImagePullPolicy: rikv1alpha1.PullAlways,
					Ports: []rikv1alpha1.Port{{Port: 80, TargetPort: 80, Protocol: rikv1alpha1.ProtocolTCP, Type: rikv1alpha1.PortClusterIP}},
					LivenessProbe: &rikv1alpha1.Probe{
						HTTP:          &rikv1alpha1.HTTPProbe{Port: 80, Path: "/", Scheme: "HTTP"},
						PeriodSeconds: 10, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
					},
				},
				{Name: "b", Image: "oci:/srv/image:latest", ImagePullPolicy: rikv1alpha1.PullIfNotPresent},
			},
			Volumes: []rikv1alpha1.Volume{
				{Name: "c", ConfigMap: &rikv1alpha1.ObjectVolume{Name: "x", Mode: &open}},
				{Name: "s", Secret: &rikv1alpha1.ObjectVolume{Name: "x", Mode: &closed}},
			},
			Tolerations: []rikv1alpha1.Toleration{{Key: "k", Value: "v"}},
		},
	}
	if diff := cmp.Diff(want, w.Spec); diff != "" {
		t.Errorf("Default (-want +got):\n%s", diff)
	}
	again := w.DeepCopy()
	scheme.Default(again)
	if diff := cmp.Diff(w, again); diff != "" {
		t.Errorf("defaulting twice changes the object:\n%s", diff)
	}
}

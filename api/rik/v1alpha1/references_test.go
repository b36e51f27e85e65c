package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferencesFindsEveryNameOnce(t *testing.T) {
	t.Parallel()
	template := InstanceTemplate{
		ImagePullSecrets: []string{"registry"},
		InitContainers: []Container{{
			Env: []EnvVar{{Name: "A", ValueFrom: &EnvVarSource{SecretKeyRef: &KeyRef{Name: "init", Key: "k"}}}},
		}},
		Containers: []Container{{
			Env: []EnvVar{
				{Name: "PLAIN", Value: "x"},
				{Name: "B", ValueFrom: &EnvVarSource{ConfigMapKeyRef: &KeyRef{Name: "settings", Key: "k"}}},
				{Name: "C", ValueFrom: &EnvVarSource{FieldRef: "metadata.name"}},
			},
			EnvFrom: []EnvFromSource{{ConfigMap: "more"}, {Secret: "registry"}},
		}},
		Volumes: []Volume{
			{Name: "c", ConfigMap: &ObjectVolume{Name: "files"}},
			{Name: "s", Secret: &ObjectVolume{Name: "tls"}},
			{Name: "e", EmptyDir: &EmptyDirVolume{}},
		},
	}
	want := References{ConfigMaps: []string{"files", "more", "settings"}, Secrets: []string{"init", "registry", "tls"}}
	if diff := cmp.Diff(want, template.References()); diff != "" {
		t.Errorf("References() differs (-want +got):\n%s", diff)
	}
}

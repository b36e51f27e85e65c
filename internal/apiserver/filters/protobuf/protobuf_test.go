package protobuf

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func encoded(t *testing.T, object runtime.Object, gv schema.GroupVersion) []byte {
	t.Helper()
	s := serializer.NewSerializer(scheme.Scheme, scheme.Scheme)
	var out bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(s, gv).Encode(object, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestToJSON(t *testing.T) {
	t.Parallel()
	replicas := int32(3)
	want := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"a": "b"}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}
	document, err := toJSON(encoded(t, want, appsv1.SchemeGroupVersion))
	if err != nil {
		t.Fatal(err)
	}
	got := &appsv1.Deployment{}
	if err := json.Unmarshal(document, got); err != nil {
		t.Fatal(err)
	}
	want.APIVersion, want.Kind = "apps/v1", "Deployment"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the object (-want +got):\n%s", diff)
	}
}

func TestToJSONRefuses(t *testing.T) {
	t.Parallel()
	unknown := &runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "example.dev/v1", Kind: "Widget"}, Raw: []byte{1}}
	var foreign bytes.Buffer
	foreign.WriteString("k8s\x00")
	raw, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	foreign.Write(raw)
	whole := encoded(t, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, appsv1.SchemeGroupVersion)
	for name, tc := range map[string]struct {
		body []byte
		code int32
	}{
		"an unknown kind": {foreign.Bytes(), http.StatusUnsupportedMediaType},
		"nothing":         {nil, http.StatusBadRequest},
		"half an object":  {whole[:len(whole)-3], http.StatusBadRequest},
		"no object":       {[]byte("k8s\x00\xff\xff"), http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			document, err := toJSON(tc.body)
			if err == nil {
				t.Fatalf("toJSON() = %s, want an error", document)
			}
			status, ok := err.(apierrors.APIStatus)
			if !ok || status.Status().Code != tc.code {
				t.Errorf("toJSON() = %v, want code %d", err, tc.code)
			}
		})
	}
}

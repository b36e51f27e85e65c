package kcp

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"rik.dev/rik/internal/testkit/kcptest"
)

func port(number int32) []corev1.ServicePort { return []corev1.ServicePort{{Port: number}} }

// TestServicesAreKept: Kubernetes' defaults and validation, no addresses, and a
// status that only its subresource writes.
func TestServicesAreKept(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	services := s.Client.CoreV1().Services(s.Namespace(t))
	made, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Ports: port(80)},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.9"}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Spec.ClusterIP != "" || made.Spec.Ports[0].NodePort != 0 || len(made.Status.LoadBalancer.Ingress) > 0 {
		t.Errorf("creating a service allocated something or took its status: %+v", made)
	}
	if made.Spec.Ports[0].Protocol != corev1.ProtocolTCP || made.Spec.SessionAffinity != corev1.ServiceAffinityNone {
		t.Errorf("Kubernetes' defaults are missing: %+v", made.Spec)
	}
	made.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	made.Spec.Ports[0].Port = 81
	updated, err := services.UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if updated.Spec.Ports[0].Port != 80 || updated.Status.LoadBalancer.Ingress[0].IP != "192.0.2.1" {
		t.Errorf("UpdateStatus() = %+v %+v, want the status alone changed", updated.Spec, updated.Status)
	}
	_, err = services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: corev1.ServiceSpec{Ports: port(99999)},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("creating a service with port 99999: %v, want it refused as invalid", err)
	}
}

// TestServiceAddressesAgree: a client that knows clusterIP alone gets clusterIPs.
func TestServiceAddressesAgree(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	services := s.Client.CoreV1().Services(s.Namespace(t))
	made, err := services.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: port(80)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{corev1.ClusterIPNone}
	if diff := cmp.Diff(want, made.Spec.ClusterIPs); diff != "" {
		t.Errorf("clusterIPs after creation (-want +got):\n%s", diff)
	}
	made.Spec.ClusterIPs, made.Spec.Ports = nil, port(81)
	updated, err := services.Update(t.Context(), made, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, updated.Spec.ClusterIPs); diff != "" {
		t.Errorf("clusterIPs after an update that left them out (-want +got):\n%s", diff)
	}
	updated.Spec.ClusterIP = ""
	if _, err := services.Update(t.Context(), updated, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("clearing clusterIP: %v, want it refused: it cannot change", err)
	}
	external, err := services.Patch(t.Context(), "headless", types.StrategicMergePatchType,
		[]byte(`{"spec":{"type":"ExternalName","externalName":"elsewhere.example","clusterIP":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if external.Spec.ClusterIP != "" || len(external.Spec.ClusterIPs) > 0 {
		t.Errorf("addresses of an ExternalName: %q %q", external.Spec.ClusterIP, external.Spec.ClusterIPs)
	}
}

func TestClaimsAreKept(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	claims := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace(t))
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	made, err := claims.Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Status.Phase != corev1.ClaimPending {
		t.Errorf("phase of a new claim = %q", made.Status.Phase)
	}
	made.Status.Phase = corev1.ClaimBound
	if made, err = claims.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil || made.Status.Phase != corev1.ClaimBound {
		t.Errorf("UpdateStatus() = %q, %v", made.Status.Phase, err)
	}
	bad := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}
	if _, err := claims.Create(t.Context(), bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("creating an empty claim: %v, want it refused as invalid", err)
	}
}

// TestNoDeploymentsOfItsOwn: a kcp gets them by negotiation, and a group that is
// served natively could not come by a CRD.
func TestNoDeploymentsOfItsOwn(t *testing.T) {
	t.Parallel()
	s := kcptest.Shared(t)
	if got, err := s.Client.Discovery().ServerResourcesForGroupVersion("apps/v1"); !apierrors.IsNotFound(err) {
		t.Errorf("discovery of apps/v1: %+v, %v, want it not found", got, err)
	}
}

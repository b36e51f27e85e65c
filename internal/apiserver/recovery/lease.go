package recovery

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/apiserver/datastore/checksum"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/controllerterm"
)

// leaseKey is the key of the active controller's Lease.
const leaseKey = "/registry/leases/" + controllerterm.Namespace + "/" + controllerterm.LeaseName

const (
	// TermMargin is how far above that of the backup a restored cluster's term begins. After the
	// backup, nodes may have accepted more terms: one for each start of a controller.
	TermMargin = 1_000_000
	// RevisionMargin is the same for revisions.
	RevisionMargin = 1_000_000_000
	// RevisionsPerSecond is added to that for each second since the backup. No datastore of rik
	// writes faster.
	RevisionsPerSecond = 20_000
)

// floor returns the revision above which a restored datastore continues.
func floor(m *backup.Manifest, now time.Time) int64 {
	age := max(int64(now.Sub(m.Created)/time.Second), 0)
	return m.Revision + RevisionMargin + age*RevisionsPerSecond
}

var (
	leaseScheme = newLeaseScheme()
	leaseCodecs = serializer.NewCodecFactory(leaseScheme)
)

func newLeaseScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(s); err != nil {
		panic("programmer error: " + err.Error())
	}
	return s
}

func decodeLease(value []byte) (*coordinationv1.Lease, error) {
	value, _, err := checksum.Check(leaseKey, value)
	if err != nil {
		return nil, err
	}
	lease := &coordinationv1.Lease{}
	if _, _, err := leaseCodecs.UniversalDeserializer().Decode(value, nil, lease); err != nil {
		return nil, fmt.Errorf("reading the term in the Lease of the controller (key %s; it must not be encrypted at rest): %w", leaseKey, err)
	}
	return lease, nil
}

// termOf returns the term in a stored Lease.
func termOf(value []byte) (int64, error) {
	lease, err := decodeLease(value)
	if err != nil {
		return 0, err
	}
	return controllerterm.OfLease(lease.Annotations, lease.Spec.LeaseTransitions), nil
}

// raisedLease returns the stored Lease for a restored cluster. Its next term is above that of the
// backup by TermMargin. Nobody holds it. Its annotation says that the cluster was restored.
func raisedLease(value []byte, m *backup.Manifest) ([]byte, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: controllerterm.Namespace, Name: controllerterm.LeaseName,
		UID: "00000000-0000-4000-8000-000000000000", CreationTimestamp: metav1.NewTime(m.Created),
	}}
	if value != nil {
		var err error
		if lease, err = decodeLease(value); err != nil {
			return nil, err
		}
	}
	term := max(controllerterm.OfLease(lease.Annotations, lease.Spec.LeaseTransitions), m.Term)
	lease.Spec = coordinationv1.LeaseSpec{}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, controllerterm.AnnotationBase, strconv.FormatInt(term+TermMargin, 10))
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, controllerterm.AnnotationRestored, m.Created.Format(time.RFC3339)+" "+m.ID)
	lease.SetGroupVersionKind(coordinationv1.SchemeGroupVersion.WithKind("Lease"))
	var out bytes.Buffer
	if err := protobuf.NewSerializer(leaseScheme, leaseScheme).Encode(lease, &out); err != nil {
		return nil, fmt.Errorf("raising the term in the Lease of the controller: %w", err)
	}
	return checksum.Add(leaseKey, out.Bytes()), nil
}

// dropped reports whether a key must not be restored, because it says that a process of the former
// servers is alive, or what it was allowed to do.
func dropped(key string) bool {
	if key == "/registry/health" || key == markerKey {
		return true
	}
	for _, prefix := range []string{
		// The API servers: their addresses, and their identities.
		"/registry/masterleases/", "/registry/peerserverleases/", "/registry/leases/kube-system/apiserver-",
		// The list of servers: package servers of the controller.
		"/registry/configmaps/rik-system/server-",
		// Proofs of contact to a kcp. What it allowed then may run elsewhere now.
		"/registry/leases/" + workloadv1alpha1.FenceNamespace + "/",
	} {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

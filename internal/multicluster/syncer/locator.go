package syncer

import (
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// hashDigits is the number of base36 digits in the name of a namespace. They contain 62 bits.
const hashDigits = 12

// namespacePrefix is the prefix of namespaces that syncers create.
const namespacePrefix = "kcp-"

// isSyncersNamespace reports whether a namespace has a name in the format of syncers.
func isSyncersNamespace(name string) bool {
	digits, found := strings.CutPrefix(name, namespacePrefix)
	return found && len(digits) == hashDigits && strings.Trim(digits, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// Identity identifies the two sides of a syncer. The names of its downstream namespaces derive
// from it.
type Identity struct {
	// Upstream is the UID of the kube-system namespace of the kcp.
	Upstream types.UID
	// Cluster and ClusterUID identify the Cluster upstream.
	Cluster    string
	ClusterUID types.UID
}

// Namespace returns the downstream name of an upstream namespace. Different kcps, Clusters or
// namespaces have different names. If two hashes collide, the locator reveals it.
func (i Identity) Namespace(upstreamNamespace string) string {
	// The slash separates the fields unambiguously: UIDs and names do not contain one.
	sum := sha256.Sum256([]byte(string(i.Upstream) + "/" + string(i.ClusterUID) + "/" + upstreamNamespace))
	base := big.NewInt(36)
	rest := new(big.Int).Mod(new(big.Int).SetBytes(sum[:]), new(big.Int).Exp(base, big.NewInt(hashDigits), nil))
	digits := rest.Text(36)
	return namespacePrefix + strings.Repeat("0", hashDigits-len(digits)) + digits
}

func (i Identity) locator(upstreamNamespace string) workloadv1alpha1.Locator {
	return workloadv1alpha1.Locator{
		UpstreamUID: string(i.Upstream), Cluster: i.Cluster,
		ClusterUID: string(i.ClusterUID), Namespace: upstreamNamespace,
	}
}

// newNamespace returns the downstream namespace for an upstream one.
func (i Identity) newNamespace(upstreamNamespace string) (*unstructured.Unstructured, error) {
	locator, err := json.Marshal(i.locator(upstreamNamespace))
	if err != nil {
		return nil, err
	}
	ns := &unstructured.Unstructured{}
	ns.SetAPIVersion("v1")
	ns.SetKind("Namespace")
	ns.SetName(i.Namespace(upstreamNamespace))
	ns.SetLabels(map[string]string{workloadv1alpha1.ClusterLabel: i.Cluster})
	ns.SetAnnotations(map[string]string{workloadv1alpha1.LocatorAnnotation: string(locator)})
	return ns, nil
}

// resolve returns the upstream namespace of a downstream namespace. It returns false if this
// syncer did not create the namespace.
func (i Identity) resolve(downstreamNamespace metav1.Object) (string, bool) {
	var found workloadv1alpha1.Locator
	raw := downstreamNamespace.GetAnnotations()[workloadv1alpha1.LocatorAnnotation]
	if json.Unmarshal([]byte(raw), &found) != nil || found != i.locator(found.Namespace) {
		return "", false
	}
	return found.Namespace, downstreamNamespace.GetName() == i.Namespace(found.Namespace)
}

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

// hashDigits are the base36 digits of a namespace's name: 62 bits.
const hashDigits = 12

// namespacePrefix begins the names of namespaces that syncers make.
const namespacePrefix = "kcp-"

// isSyncersNamespace says whether a namespace has a name as syncers give it.
func isSyncersNamespace(name string) bool {
	digits, found := strings.CutPrefix(name, namespacePrefix)
	return found && len(digits) == hashDigits && strings.Trim(digits, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// Identity is what a syncer stands between: its namespaces downstream are made of it.
type Identity struct {
	// Upstream is the UID of the kcp's kube-system namespace.
	Upstream types.UID
	// Cluster and ClusterUID are those of the Cluster upstream.
	Cluster    string
	ClusterUID types.UID
}

// Namespace is the name downstream of a namespace upstream. No two kcps, Clusters or
// namespaces share one, but by an accident that the locator shows.
func (i Identity) Namespace(upstreamNamespace string) string {
	// The fields end where the next one begins: neither UIDs nor names hold a slash.
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

// newNamespace is the namespace downstream for one upstream.
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

// resolve says which namespace upstream a namespace downstream stands for, and false
// when it is not one of ours.
func (i Identity) resolve(downstreamNamespace metav1.Object) (string, bool) {
	var found workloadv1alpha1.Locator
	raw := downstreamNamespace.GetAnnotations()[workloadv1alpha1.LocatorAnnotation]
	if json.Unmarshal([]byte(raw), &found) != nil || found != i.locator(found.Namespace) {
		return "", false
	}
	return found.Namespace, downstreamNamespace.GetName() == i.Namespace(found.Namespace)
}

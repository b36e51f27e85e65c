package admission

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/pki"
)

// TestDial tests that a node that did not exist is created, and that the scheduler sees a certificate
// with the name and the UID of a node that exists.
func TestDial(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := rikv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	old := &rikv1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "sim-00000", UID: types.UID("u-0")}}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(old).Build()
	authority, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	certPEM, keyPEM, err := authority.IssueServer([]string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	c := Cluster{API: api, Authority: authority, Scheduler: listener.Addr().String()}
	for _, name := range []string{"sim-00000", "sim-00001"} {
		conn, release, err := c.Dial(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		conn.(*grpc.ClientConn).Connect()
		peer, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		secured := peer.(*tls.Conn)
		if err := secured.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		subject := secured.ConnectionState().PeerCertificates[0].Subject
		_ = secured.Close()
		release()
		var n rikv1alpha1.Node
		if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
			t.Fatal(err)
		}
		if subject.CommonName != rikv1alpha1.NodeUserPrefix+name || subject.SerialNumber != string(n.UID) {
			t.Errorf("the certificate of %s, whose UID is %q, has the subject %v", name, n.UID, subject)
		}
	}
}

func TestAdministratorNeedsTheServersDirectory(t *testing.T) {
	t.Parallel()
	if _, err := Administrator(filepath.Join(t.TempDir(), "admin.kubeconfig")); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("Administrator() = %v, want an error that names --data-dir", err)
	}
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	list, err := Capacity{CPU: "32", Memory: "256Gi", Disk: "1Ti", Instances: 250}.Allocatable()
	if err != nil || len(list) != 4 {
		t.Errorf("Allocatable() = %v, %v", list, err)
	}
	if q := list[rikv1alpha1.ResourceMemory]; q.Value() != 256<<30 {
		t.Errorf("Allocatable() has %s of memory", q.String())
	}
	if _, err := (Capacity{CPU: "1", Memory: "much", Disk: "1"}).Allocatable(); err == nil || !strings.Contains(err.Error(), `--memory "much"`) {
		t.Errorf("Allocatable() = %v, want an error that names the flag", err)
	}
}

package apiserver_test

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rik.dev/rik/internal/apiserver"
	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/recovery"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/testkit/apitest"
)

func opener(file []byte) recovery.Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(file)), nil }
}

// download creates a backup as a client does.
func download(t *testing.T, s *apitest.Server) []byte {
	t.Helper()
	body, err := s.Client.CoreV1().RESTClient().Post().AbsPath(backup.Path).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	file, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// replace returns a backup with another content of a file.
func replace(t *testing.T, file []byte, name string, change func([]byte) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w *backup.Writer
	_, err := backup.Read(t.Context(), bytes.NewReader(file), backup.Identities{}, nil, backup.Visitor{
		Header: func(h backup.Header) (err error) {
			w, err = backup.NewWriter(&out, backup.Recipients{Unencrypted: true}, h)
			return err
		},
		File: func(found string, content []byte) error {
			if found == name {
				content = change(content)
			}
			return w.AddFile(found, content)
		},
		Entry: func(e backup.Entry) error { return w.AddEntry(e) },
	})
	if err == nil {
		_, err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestABackupMakesAServer: a backup of a server on etcd makes a server on SQLite, in an empty
// directory. Secrets can be read, and tokens and certificates that the former server issued are
// valid. Clients that remember revisions must list again.
func TestABackupMakesAServer(t *testing.T) {
	t.Parallel()
	first := apitest.Start(t)
	secrets := first.Client.CoreV1().Secrets("default")
	canary, err := secrets.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "canary"}, StringData: map[string]string{"password": plaintext}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := first.Client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := download(t, first)
	if bytes.Contains(file, []byte(plaintext)) {
		t.Error("the backup contains the secret in the clear")
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	scratch := apiserver.Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), AuditLog: apiserver.AuditOff}
	if m, err := apiserver.VerifyBackup(t.Context(), scratch, opener(file), backup.Identities{}); err != nil || m.Resources["secrets"] == 0 {
		t.Errorf("VerifyBackup() = %+v, %v", m, err)
	}
	scratch.DataDir = t.TempDir()
	other := replace(t, file, "encryption.yaml", func(content []byte) []byte {
		return regexp.MustCompile("secret: .*").ReplaceAll(content, []byte("secret: QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="))
	})
	if _, err := apiserver.VerifyBackup(t.Context(), scratch, opener(other), backup.Identities{}); !errors.Is(err, clusterid.ErrKeys) {
		t.Errorf("VerifyBackup() with another encryption key = %v, want ErrKeys", err)
	}

	cfg := apiserver.Config{DataDir: t.TempDir(), DatastoreEndpoint: "sqlite://", Logger: slog.New(slog.DiscardHandler)}
	if _, err := apiserver.RestoreBackup(t.Context(), cfg, "file", opener(file), backup.Identities{}); err != nil {
		t.Fatal(err)
	}
	second := apitest.Start(t, func(c *apiserver.Config) { c.DataDir, c.DatastoreEndpoint = cfg.DataDir, cfg.DatastoreEndpoint })
	got, err := second.Client.CoreV1().Secrets("default").Get(t.Context(), "canary", metav1.GetOptions{})
	if err != nil || string(got.Data["password"]) != plaintext || got.UID != canary.UID {
		t.Fatalf("the secret is %+v, %v", got, err)
	}
	if version, err := strconv.ParseInt(got.ResourceVersion, 10, 64); err != nil || version < recovery.RevisionMargin {
		t.Errorf("the secret's version is %s, want more than %d", got.ResourceVersion, recovery.RevisionMargin)
	}
	for name, credential := range map[string]func(*rest.Config){
		"the token of a service account": func(c *rest.Config) {
			c.BearerToken, c.CertData, c.KeyData, c.CertFile, c.KeyFile = token.Status.Token, nil, nil, "", ""
		},
		"the administrator's certificate": func(c *rest.Config) {
			c.TLSClientConfig = first.Config.TLSClientConfig
		},
	} {
		config := rest.CopyConfig(second.Config)
		credential(config)
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("%s is not accepted: %v", name, err)
		} else if strings.HasPrefix(name, "the token") && who.Status.UserInfo.Username != "system:serviceaccount:default:robot" {
			t.Errorf("%s is of %s", name, who.Status.UserInfo.Username)
		}
	}
	wantGone(t, second, canary)
}

// wantGone checks that a client with an object of the former server must list again, and cannot
// update the object.
func wantGone(t *testing.T, s *apitest.Server, old *corev1.Secret) {
	t.Helper()
	watch, err := s.Client.CoreV1().Secrets("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		defer watch.Stop()
		event := <-watch.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from revision %s = %v, want 410 Gone", old.ResourceVersion, err)
	}
	if _, err := s.Client.CoreV1().Secrets("default").Update(t.Context(), old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("an update of revision %s = %v, want a conflict", old.ResourceVersion, err)
	}
}

// TestOnlyAdministratorsCreateBackups: no RBAC rule gives access to a backup.
func TestOnlyAdministratorsCreateBackups(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "backup-almighty"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "almighty"}},
	}
	if _, err := s.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := s.ConfigFor(pkix.Name{CommonName: "almighty"})
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]int{http.MethodPost: http.StatusForbidden, http.MethodGet: http.StatusForbidden} {
		request, err := http.NewRequestWithContext(t.Context(), method, config.Host+backup.Path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := transport.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != want || !bytes.Contains(text, []byte("system:masters")) {
			t.Errorf("%s as another user = %d %s, want %d", method, answer.StatusCode, text, want)
		}
	}
}

// TestAServerRefusesAnUnfinishedRestore: neither the data directory nor an external datastore with
// a part of a backup can be served.
func TestAServerRefusesAnUnfinishedRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/"+recovery.RecordFile, []byte(`{"backup":"x","from":"file"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := apiserver.New(t.Context(), apiserver.Config{DataDir: dir, BindAddress: "127.0.0.1", Logger: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, recovery.ErrUnfinished) || !strings.Contains(err.Error(), "--restore file") {
		t.Errorf("New() = %v, want ErrUnfinished with the next step", err)
	}
	if _, err := os.Stat(dir + "/" + clusterid.FileName); err == nil {
		t.Error("the refused start wrote an identity")
	}
}

// backups is the number of backups under load. hack/nightly.sh sets more.
func backups(t *testing.T) int {
	n, err := strconv.Atoi(os.Getenv("RIK_BACKUPS"))
	if err != nil {
		return 3
	}
	t.Logf("%d backups", n)
	return n
}

// TestBackupsUnderLoad: each backup that is created while objects change is one consistent state: in
// it, the second of two objects that are written in turn has the number of the first, or the one
// before. Each is restored, and compared object by object.
func TestBackupsUnderLoad(t *testing.T) {
	t.Parallel()
	s := apitest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var writes atomic.Int64
	for w := range 4 {
		running.Go(func() { load(ctx, t, s.Client, w, &writes) })
	}
	defer running.Wait()
	defer cancel()
	for i := range backups(t) {
		before := writes.Load()
		for deadline := time.Now().Add(apitest.Timeout); writes.Load() < before+50; {
			if time.Now().After(deadline) {
				t.Fatal("the load has stopped")
			}
			time.Sleep(time.Millisecond) //nolint:forbidigo // waits for other goroutines
		}
		file := download(t, s)
		pairs := map[string]string{}
		if _, err := backup.Read(t.Context(), bytes.NewReader(file), backup.Identities{}, nil, backup.Visitor{Entry: func(e backup.Entry) error {
			if strings.HasPrefix(string(e.Key), "/registry/configmaps/default/load-") {
				at := bytes.Index(e.Value, []byte("number="))
				end := bytes.IndexByte(e.Value[max(at, 0):], ';')
				if at < 0 || end < 0 {
					return fmt.Errorf("%s has no number", e.Key)
				}
				pairs[string(e.Key)] = string(e.Value[at+7 : at+end])
			}
			return nil
		}}); err != nil {
			t.Fatalf("backup %d: %v", i, err)
		}
		for key, text := range pairs {
			if !strings.HasSuffix(key, "-first") {
				continue
			}
			first, _ := strconv.Atoi(text)
			second, err := strconv.Atoi(pairs[strings.TrimSuffix(key, "first")+"second"])
			if err == nil && second != first && second != first-1 {
				t.Errorf("backup %d: %s has the number %d and the second has %d", i, key, first, second)
			}
		}
		if len(pairs) == 0 {
			t.Errorf("backup %d has no object of the load", i)
		}
		cfg := apiserver.Config{DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), AuditLog: apiserver.AuditOff}
		if i%2 == 1 {
			cfg.DatastoreEndpoint = "sqlite://"
		}
		if _, err := apiserver.VerifyBackup(t.Context(), cfg, opener(file), backup.Identities{}); err != nil {
			t.Errorf("backup %d: VerifyBackup() = %v", i, err)
		}
	}
}

// load writes two objects in turn, and creates and deletes another one.
func load(ctx context.Context, t *testing.T, client kubernetes.Interface, writer int, writes *atomic.Int64) {
	maps := client.CoreV1().ConfigMaps("default")
	for number := 1; ctx.Err() == nil; number++ {
		for _, name := range []string{"first", "second"} {
			object := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("load-%d-%s", writer, name)},
				Data:       map[string]string{"n": fmt.Sprintf("number=%d;", number), "filler": strings.Repeat("x", number%2000)},
			}
			_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
			if apierrors.IsNotFound(err) {
				_, err = maps.Create(ctx, object, metav1.CreateOptions{})
			}
			if err != nil && ctx.Err() == nil {
				t.Errorf("writing: %v", err)
				return
			}
			writes.Add(1)
		}
		short := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("short-%d-%d", writer, number)}}
		if _, err := maps.Create(ctx, short, metav1.CreateOptions{}); err == nil && number%3 != 0 {
			_ = maps.Delete(ctx, short.Name, metav1.DeleteOptions{})
		}
	}
}

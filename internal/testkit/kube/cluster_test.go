package kube_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/program"
)

// TestCluster checks what tests rely on, on one cluster, because its start takes seconds.
func TestCluster(t *testing.T) {
	c := kube.Start(t, kube.Options{ControllerManager: true, Kubelet: true})
	t.Run("deployment becomes available", func(t *testing.T) { deploymentBecomesAvailable(t, c) })
	t.Run("job completes", func(t *testing.T) { jobCompletes(t, c) })
	t.Run("namespace and what is in it go", func(t *testing.T) { namespaceGoes(t, c) })
	t.Run("token of a service account is known", func(t *testing.T) { tokenIsKnown(t, c) })
	t.Run("kubeconfig connects", func(t *testing.T) { kubeconfigConnects(t, c) })
	t.Run("cut and mended", func(t *testing.T) { cutAndRestored(t, c) })
	t.Run("another way", func(t *testing.T) { otherDirection(t, c) })
	t.Run("stopped and started again", func(t *testing.T) { stoppedAndStarted(t, c) })
}

func deploymentBecomesAvailable(t *testing.T, c *kube.Cluster) {
	deployments := c.Client().AppsV1().Deployments(metav1.NamespaceDefault)
	replicas := int32(3)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: podTemplate("", map[string]string{"app": "web"}),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "three replicas are available", func(ctx context.Context) error {
		d, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		if err == nil && d.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("status %+v", d.Status)
		}
		return err
	})
	if err := deployments.Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "no pod is left", func(ctx context.Context) error {
		pods, err := c.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
}

func jobCompletes(t *testing.T, c *kube.Cluster) {
	jobs := c.Client().BatchV1().Jobs(metav1.NamespaceDefault)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "once"}, Spec: batchv1.JobSpec{Template: podTemplate(corev1.RestartPolicyNever, nil)}}
	if _, err := jobs.Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the job succeeds", func(ctx context.Context) error {
		j, err := jobs.Get(ctx, "once", metav1.GetOptions{})
		if err == nil && j.Status.Succeeded != 1 {
			err = fmt.Errorf("status %+v", j.Status)
		}
		return err
	})
}

func podTemplate(restart corev1.RestartPolicy, labels map[string]string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{RestartPolicy: restart, Containers: []corev1.Container{{Name: "main", Image: "nothing"}}},
	}
}

func namespaceGoes(t *testing.T, c *kube.Cluster) {
	namespaces := c.Client().CoreV1().Namespaces()
	if _, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "content"}}
	if _, err := c.Client().CoreV1().ConfigMaps("full").Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := namespaces.Delete(t.Context(), "full", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, kube.Timeout, "the namespace is gone", func(ctx context.Context) error {
		ns, err := namespaces.Get(ctx, "full", metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("phase %s, conditions %v", ns.Status.Phase, ns.Status.Conditions)
		}
	})
}

func tokenIsKnown(t *testing.T, c *kube.Cluster) {
	token, err := c.Client().CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Rest())
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := who.Status.UserInfo.Username, "system:serviceaccount:default:default"; got != want {
		t.Errorf("the token's user = %q, want %q", got, want)
	}
}

func kubeconfigConnects(t *testing.T, c *kube.Cluster) {
	config, err := clientcmd.RESTConfigFromKubeConfig(c.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), kube.NodeName, metav1.GetOptions{}); err != nil {
		t.Errorf("reading the node: %v", err)
	}
}

func cutAndRestored(t *testing.T, c *kube.Cluster) {
	watch, err := c.Client().CoreV1().Pods("").Watch(t.Context(), metav1.ListOptions{LabelSelector: "none=such"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	c.Cut()
	if _, err := c.Client().Discovery().ServerVersion(); err == nil {
		t.Error("ServerVersion() succeeds through a cut")
	}
	if aside, err := kubernetes.NewForConfig(c.Aside()); err != nil {
		t.Error(err)
	} else if _, err := aside.Discovery().ServerVersion(); err != nil {
		t.Errorf("ServerVersion() aside of a cut = %v", err)
	}
	for range watch.ResultChan() { // until it is closed
	}
	c.Mend(t)
	if _, err := c.Client().Discovery().ServerVersion(); err != nil {
		t.Errorf("ServerVersion() after mending = %v", err)
	}
}

// otherDirection checks that a way is cut independently.
func otherDirection(t *testing.T, c *kube.Cluster) {
	way := c.Way(t)
	for _, step := range []struct {
		do                func()
		isOpen, wayIsOpen bool
	}{
		{func() {}, true, true},
		{way.Cut, true, false},
		{func() { way.Mend(t); c.Cut() }, false, true},
		{func() { c.Mend(t) }, true, true},
	} {
		step.do()
		_, err := c.Client().Discovery().ServerVersion()
		_, wayErr := way.Client().Discovery().ServerVersion()
		if (err == nil) != step.isOpen || (wayErr == nil) != step.wayIsOpen {
			t.Errorf("ServerVersion() = %v, and by the other way %v, want them to succeed: %t and %t", err, wayErr, step.isOpen, step.wayIsOpen)
		}
	}
}

func stoppedAndStarted(t *testing.T, c *kube.Cluster) {
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "stays"}}
	if _, err := c.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Stop()
	if _, err := c.Client().Discovery().ServerVersion(); err == nil {
		t.Error("ServerVersion() of a stopped server succeeds")
	}
	c.Restart(t)
	if _, err := c.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "stays", metav1.GetOptions{}); err != nil {
		t.Errorf("reading what was stored before: %v", err)
	}
}

// TestLeavesNothing starts a cluster in a subtest, whose end removes it.
func TestLeavesNothing(t *testing.T) {
	var host string
	t.Run("cluster", func(t *testing.T) { host = kube.Start(t, kube.Options{}).Rest().Host })
	if client, err := kubernetes.NewForConfig(&rest.Config{Host: host}); err != nil {
		t.Fatal(err)
	} else if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Error("the server answers after the test")
	}
	children, err := exec.Command("ps", "--no-headers", "-o", "comm", "--ppid", fmt.Sprint(os.Getpid())).Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(children), "kube-") {
		t.Errorf("processes after the test: %s", children)
	}
}

// TestMissingPrograms checks that missing programs are a failure with a remedy.
func TestMissingPrograms(t *testing.T) {
	t.Setenv(program.EnvBin, t.TempDir())
	fatal := &recorder{TB: t}
	func() {
		defer func() { _ = recover() }()
		kube.Start(fatal, kube.Options{})
	}()
	if !strings.Contains(fatal.said, "make bin/kube-apiserver") {
		t.Errorf("Start without programs says %q, want what makes them", fatal.said)
	}
}

// recorder stores the first fatal message instead of failing.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	panic(r.said)
}

package multicluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/metrics"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/kube"
	"rik.dev/rik/internal/testkit/output"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

// canary is a credential of a cluster.
const canary = "c4n4ry-5ecret"

// metricsOfTheCommands tests that a cluster controller and a syncer serve metrics while they run,
// without any credential. A kcp serves them to its administrators.
func metricsOfTheCommands(t *testing.T, s *kcptest.Server) {
	t.Helper()
	config, physical := s.Config, kube.Shared(t)
	admin, below := served.AdminFile(s.DataDir), filepath.Join(t.TempDir(), "below")
	if err := os.WriteFile(below, physical.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	addCluster(t, config, "pushed", "push", string(physical.Kubeconfig()))
	addCluster(t, config, "byhand", "none", string(physical.Kubeconfig()))
	addCluster(t, config, "lost", "push", "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"+
		"clusters: [{name: a, cluster: {server: \"https://127.0.0.1:1\"}}]\nusers: [{name: a, user: {token: "+canary+"}}]\n")
	controller := url(t, clusterControllerCommand(), "--kubeconfig", admin)
	hand := url(t, syncerCommand(), "--cluster", "byhand", "--from-kubeconfig", admin, "--to-kubeconfig", below)

	seen := metricsWith(t, controller, `rik_multicluster_cluster_ready{cluster="lost"} 0`, `rik_syncer_reachable{cluster="pushed",side="downstream"} 1`,
		`rik_syncer_deletes_paused{cluster="pushed"} 0`, `rik_syncer_objects{cluster="pushed",resource="configmaps"} 0`,
		`workqueue_adds_total{name="clusters"}`, `workqueue_adds_total{name="negotiation"}`, `workqueue_depth{name="syncer/pushed"}`)
	seen += metricsWith(t, hand, `rik_syncer_reachable{cluster="byhand",side="upstream"} 1`, `rik_syncer_delay_seconds_count{cluster="byhand"} 0`)
	if found := secretsIn(t, seen, config, physical.Rest()); len(found) > 0 {
		t.Errorf("the metrics hold %v:\n%s", found, seen)
	}
	refusesAnonymousUsers(t, config)
}

func addCluster(t *testing.T, config *rest.Config, name, mode, kubeconfig string) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": workloadv1alpha1.SchemeGroupVersion.String(), "kind": "Cluster", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"kubeconfig": kubeconfig, "syncMode": mode},
	}}
	if _, err := client.Resource(workloadv1alpha1.SchemeGroupVersion.WithResource("clusters")).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

var servingMetrics = regexp.MustCompile(`msg="serving metrics".* url=(\S+)`)

// url runs a command with a port for metrics until the test ends, and returns its URL.
func url(t *testing.T, c *cobra.Command, args ...string) string {
	t.Helper()
	log := &output.Buffer{}
	c.SetErr(log)
	c.SetOut(io.Discard)
	c.SetArgs(append(args, "--metrics-address", "127.0.0.1:0"))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.ExecuteContext(ctx) }()
	var found string
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s ended with %v", c.Name(), err)
		}
		if _, err := scrape(context.Background(), found); err == nil {
			t.Errorf("%s serves its metrics after its end", c.Name())
		}
	})
	poll.Until(t, kube.Timeout, c.Name()+" says where its metrics are", func(context.Context) error {
		match := servingMetrics.FindStringSubmatch(log.String())
		if match == nil {
			return fmt.Errorf("it said %q", log)
		}
		found = match[1]
		return nil
	})
	return found
}

// metricsWith waits until the metrics contain all wanted texts, and returns the metrics.
func metricsWith(t *testing.T, url string, wanted ...string) string {
	t.Helper()
	var text string
	poll.Until(t, kube.Timeout, "the metrics are complete", func(ctx context.Context) error {
		var err error
		if text, err = scrape(ctx, url); err != nil {
			return err
		}
		for _, line := range wanted {
			if !strings.Contains(text, line) {
				return fmt.Errorf("%q is not in them", line)
			}
		}
		return nil
	})
	return text
}

func scrape(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return string(body), err
}

// secretsIn returns the credentials that a text contains.
func secretsIn(t *testing.T, text string, configs ...*rest.Config) []string {
	t.Helper()
	secrets := []string{canary, "PRIVATE KEY"}
	for _, c := range configs {
		if err := rest.LoadTLSFiles(c); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(c.KeyData)) {
			if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "---") {
				secrets = append(secrets, line)
			}
		}
	}
	if len(secrets) < 4 {
		t.Fatalf("there are no keys to look for: %d", len(secrets))
	}
	var found []string
	for _, secret := range secrets {
		if strings.Contains(text, secret) {
			found = append(found, secret)
		}
	}
	return found
}

// refusesAnonymousUsers requests the metrics of a kcp, as its administrator and without credentials.
func refusesAnonymousUsers(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath(metrics.Path).Do(t.Context()).Raw()
	if err != nil || !bytes.Contains(text, []byte("apiserver_request_total")) {
		t.Errorf("the metrics of the kcp, to its administrator: %.100q, %v", text, err)
	}
	anonymous := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer anonymous.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+metrics.Path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := anonymous.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized && answer.StatusCode != http.StatusForbidden {
		t.Errorf("the metrics of the kcp, to a user without credentials: %s", answer.Status)
	}
}

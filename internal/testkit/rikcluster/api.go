package rikcluster

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// api sends HTTP requests to the API server as the administrator. Tests poll often, and that
// many rikctl processes would use more of two cores than the cluster.
type api struct {
	mu     sync.Mutex
	client *http.Client
	host   string
}

// ask gets a path over a connection that is kept open.
func (a *api) ask(kubeconfig, path string) ([]byte, error) {
	client, host, err := a.connect(kubeconfig)
	if err != nil {
		return nil, err
	}
	answer, err := client.Get(host + path)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s\n%s", path, answer.Status, body)
	}
	return body, err
}

func (a *api) connect(kubeconfig string) (*http.Client, string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		return a.client, a.host, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, "", err
	}
	config.Timeout = time.Minute
	if a.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, "", err
	}
	a.host = config.Host
	return a.client, a.host, nil
}

// forget discards the connection to a server that has ended.
func (a *api) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
	a.client = nil
}

// Ask gets a path of the API server, such as /readyz.
func (c *Cluster) Ask(path string) ([]byte, error) {
	return c.api.ask(filepath.Join(c.DataDir(), "admin.kubeconfig"), path)
}

// group is the path of rik's API group.
const group = "/apis/rik.dev/v1alpha1/"

// TryGet reads objects of rik: TryGet(&list, "namespaces/default/instances").
func (c *Cluster) TryGet(out any, path string) error {
	raw, err := c.Ask(group + path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("reading %s: %w\n%s", path, err, raw)
	}
	return nil
}

// Get reads objects of rik, and fails the test on an error.
func (c *Cluster) Get(out any, path string) {
	c.tb.Helper()
	if err := c.TryGet(out, path); err != nil {
		c.tb.Fatal(err)
	}
}

// readyNodes returns the number of ready nodes.
func (c *Cluster) readyNodes() (int, error) {
	var nodes struct {
		Items []struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := c.TryGet(&nodes, "nodes"); err != nil {
		return 0, err
	}
	n := 0
	for i := range nodes.Items {
		for _, condition := range nodes.Items[i].Status.Conditions {
			if condition.Type == "Ready" && strings.EqualFold(condition.Status, "True") {
				n++
			}
		}
	}
	return n, nil
}

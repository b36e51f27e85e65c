// Package demo runs the sample application of "rik demo" on a cluster. It writes an image of one
// static program, creates a Workload of it, and waits until the application answers over HTTP.
//
// Up and Down are idempotent. They change only objects with the demo's label. The package starts no
// server: the program rik does that, and passes a client.
//
// Reads: Nodes, Instances. Writes: Workloads.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/excerpt"
)

// Errors of Up and Down.
var (
	// ErrForeign means that a Workload with the demo's name exists that the demo did not create.
	ErrForeign = errors.New("it is not part of the demo")
	// ErrNoNode means that this machine's node cannot run the application.
	ErrNoNode = errors.New("no node is ready")
	// ErrNoAnswer means that the application did not answer in time.
	ErrNoAnswer = errors.New("the application does not answer")
	// ErrNotRemoved means that the instances did not end in time.
	ErrNotRemoved = errors.New("the application is not removed yet")
)

// Namespace is where the Workload is.
const Namespace = "default"

const (
	// interval is the time between two looks at the cluster.
	interval = 200 * time.Millisecond
	// greeting is how the answers of the sample program begin.
	greeting = "hello from "
	// answerBytes is how much of an answer is read. The greeting has a host name, which is short.
	answerBytes = 512
)

// Demo is a sample application on a cluster.
type Demo struct {
	// Client is a client of the cluster, for an administrator.
	Client client.Client
	// Name is the name of the Workload.
	Name string
	// Port is the port of this machine at which the application answers.
	Port int32
	// Replicas is the number of instances of a new Workload.
	Replicas int32
	// Program is the path of the static program in the image.
	Program string
	// ImageDir is the directory below which the image is written.
	ImageDir string
	// Machine is this machine. The image is only here, so the instances must be here too.
	Machine Machine
	// Timeout limits each wait: for the node, for an answer, and for the end of the instances.
	Timeout time.Duration
	// CheckPort returns an error if another program uses the port.
	CheckPort func(ctx context.Context, port int32) error
	// Get requests a URL and returns the answer; by default Get.
	Get func(ctx context.Context, url string) (string, error)
	// Say is called with a short text at each step.
	Say func(string)
}

// Result describes a running application.
type Result struct {
	URL       string   `json:"url"`
	Namespace string   `json:"namespace"`
	Workload  string   `json:"workload"`
	Instances []string `json:"instances"`
	Node      string   `json:"node"`
	Image     string   `json:"image"`
	Answer    string   `json:"answer"`
}

func (d *Demo) say(format string, args ...any) {
	if d.Say != nil {
		d.Say(fmt.Sprintf(format, args...))
	}
}

// url is the address of the application.
func (d *Demo) url() string { return fmt.Sprintf("http://127.0.0.1:%d/", d.Port) }

// Up starts the application and returns when it answers. If it runs already, Up changes only what
// differs, and keeps the number of replicas.
func (d *Demo) Up(ctx context.Context) (Result, error) {
	image, err := d.writeImage()
	if err != nil {
		return Result{}, err
	}
	node, err := d.AwaitNode(ctx)
	if err != nil {
		return Result{}, err
	}
	if err := d.ensure(ctx, d.workload(image, node)); err != nil {
		return Result{}, err
	}
	answer, err := d.awaitAnswer(ctx)
	if err != nil {
		return Result{}, err
	}
	result := Result{URL: d.url(), Namespace: Namespace, Workload: d.Name, Node: node, Image: image, Answer: answer}
	instances, err := d.instances(ctx)
	for _, i := range instances {
		result.Instances = append(result.Instances, i.Name)
	}
	return result, err
}

// AwaitNode waits until this machine's node is ready, and returns its name.
func (d *Demo) AwaitNode(ctx context.Context) (string, error) {
	var name string
	var problem error
	said := ""
	err := wait.PollUntilContextTimeout(ctx, interval, d.Timeout, true, func(ctx context.Context) (bool, error) {
		found, reason := d.node(ctx)
		if ctx.Err() == nil { // otherwise the reason of the last complete look counts
			name, problem = found, reason
		}
		if problem != nil && problem.Error() != said {
			said = problem.Error()
			d.say("waiting for the node: %s", said)
		}
		return problem == nil, nil
	})
	switch {
	case err == nil:
		return name, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	default:
		return "", fmt.Errorf("%w after %s: %w", ErrNoNode, d.Timeout, problem)
	}
}

// node returns the name of this machine's node if it is ready.
func (d *Demo) node(ctx context.Context) (string, error) {
	var list rikv1alpha1.NodeList
	if err := d.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("listing the nodes: %w", err)
	}
	return d.Machine.node(list.Items)
}

// ensure creates the Workload, or updates the one of an earlier demo.
func (d *Demo) ensure(ctx context.Context, want *rikv1alpha1.Workload) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		var found rikv1alpha1.Workload
		err := d.Client.Get(ctx, client.ObjectKeyFromObject(want), &found)
		if apierrors.IsNotFound(err) {
			if err := d.CheckPort(ctx, d.Port); err != nil {
				return err
			}
			d.say("creating the workload %s with %d instances", d.Name, d.Replicas)
			if err := d.Client.Create(ctx, want); err != nil {
				return fmt.Errorf("creating the workload %s: %w", d.Name, err)
			}
			return nil
		}
		if err := d.own(&found, err); err != nil {
			return err
		}
		if portOf(&found) != d.Port {
			if err := d.CheckPort(ctx, d.Port); err != nil {
				return err
			}
		}
		d.say("the workload %s exists", d.Name)
		found.Spec.InstanceTemplate = want.Spec.InstanceTemplate
		if err := d.Client.Update(ctx, &found); err != nil {
			return fmt.Errorf("updating the workload %s: %w", d.Name, err)
		}
		return nil
	})
}

// own returns an error unless a Workload was read and belongs to the demo.
func (d *Demo) own(found *rikv1alpha1.Workload, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("reading the workload %s: %w", d.Name, err)
	case found.Labels[labelKey] != labelValue:
		return fmt.Errorf("workload %s exists, and %w: choose another name with --name", d.Name, ErrForeign)
	case found.DeletionTimestamp != nil:
		return fmt.Errorf("workload %s is being deleted: wait until \"rikctl get workload %s\" no longer shows it", d.Name, d.Name)
	}
	return nil
}

// awaitAnswer waits until the application answers, and returns the answer.
func (d *Demo) awaitAnswer(ctx context.Context) (string, error) {
	get := d.Get
	if get == nil {
		get = Get
	}
	d.say("waiting for an answer at %s", d.url())
	var answer string
	var problem error
	said := map[string]string{}
	err := wait.PollUntilContextTimeout(ctx, interval, d.Timeout, true, func(ctx context.Context) (bool, error) {
		d.sayStates(ctx, said)
		text, reason := ask(ctx, get, d.url())
		if ctx.Err() == nil {
			answer, problem = text, reason
		}
		return answer != "", nil
	})
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	default:
		instances, err := d.instances(context.WithoutCancel(ctx))
		return "", errors.Join(fmt.Errorf("%w at %s after %s: %w\n%s", ErrNoAnswer, d.url(), d.Timeout, problem, explain(instances)), err)
	}
}

// ask returns the answer of the sample program.
func ask(ctx context.Context, get func(context.Context, string) (string, error), url string) (string, error) {
	text, err := get(ctx, url)
	if err == nil && !strings.HasPrefix(text, greeting) {
		err = fmt.Errorf("another program answers: %q", excerpt.Of(text, 60))
	}
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(text), nil
}

// sayStates says which instances changed their state.
func (d *Demo) sayStates(ctx context.Context, said map[string]string) {
	instances, err := d.instances(ctx)
	if err != nil {
		return // the next look follows
	}
	for i := range instances {
		if text := stateOf(&instances[i]); said[instances[i].Name] != text {
			said[instances[i].Name] = text
			d.say("instance %s: %s", instances[i].Name, text)
		}
	}
}

// instances returns the instances of the application.
func (d *Demo) instances(ctx context.Context) ([]rikv1alpha1.Instance, error) {
	var list rikv1alpha1.InstanceList
	if err := d.Client.List(ctx, &list, client.InNamespace(Namespace), client.MatchingLabels{rikv1alpha1.LabelWorkload: d.Name}); err != nil {
		return nil, fmt.Errorf("listing the instances of %s: %w", d.Name, err)
	}
	return list.Items, nil
}

// Get is the Get of a Demo. It requires the status 200.
func Get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	// Each request uses a new connection, because the first one may have reached another program.
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers with the status %s", url, response.Status)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, answerBytes))
	return string(text), err
}

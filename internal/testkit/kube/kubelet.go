package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
)

// NodeName is the name of the node of [Options.Kubelet].
const NodeName = "node-0"

// nodeAddress is the address of the node and of every pod, since nothing really runs.
const nodeAddress = "127.0.0.1"

// kubelet simulates the scheduler and the kubelet of one node.
type kubelet struct {
	client  kubernetes.Interface
	pods    cache.SharedIndexInformer
	queue   workqueue.TypedRateLimitingInterface[cache.ObjectName]
	cancel  context.CancelFunc
	stopped sync.WaitGroup
}

func startKubelet(ctx context.Context, config *rest.Config) (*kubelet, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the kubelet's client: %w", err)
	}
	if err := registerNode(ctx, client); err != nil {
		return nil, fmt.Errorf("registering the node: %w", err)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	k := &kubelet{
		client: client,
		pods:   factory.Core().V1().Pods().Informer(),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    k.enqueue,
		UpdateFunc: func(_, pod any) { k.enqueue(pod) },
	}); err != nil {
		return nil, fmt.Errorf("watching pods: %w", err)
	}
	run, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.stopped.Go(func() { k.pods.RunWithContext(run) })
	k.stopped.Go(func() {
		for k.next(run) {
		}
	})
	return k, nil
}

func (k *kubelet) stop() {
	k.cancel()
	k.queue.ShutDown()
	k.stopped.Wait()
}

func (k *kubelet) enqueue(object any) {
	if pod, ok := object.(*corev1.Pod); ok {
		k.queue.Add(cache.MetaObjectToName(pod))
	}
}

// next handles one pod, and returns false after the queue was shut down.
func (k *kubelet) next(ctx context.Context) bool {
	name, shutdown := k.queue.Get()
	if shutdown {
		return false
	}
	defer k.queue.Done(name)
	object, exists, err := k.pods.GetStore().GetByKey(name.String())
	if err == nil && exists {
		err = k.handle(ctx, object.(*corev1.Pod))
	}
	if err != nil && !apierrors.IsNotFound(err) {
		// A conflict, or an error that may be temporary, for example while the server is down.
		k.queue.AddRateLimited(name)
		return true
	}
	k.queue.Forget(name)
	return true
}

// handle makes one change to a pod. The event of that change leads to the next one.
func (k *kubelet) handle(ctx context.Context, pod *corev1.Pod) error {
	pods := k.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "":
		now := int64(0)
		return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
	case pod.DeletionTimestamp != nil:
		return nil
	case pod.Spec.NodeName == "":
		return pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: NodeName},
		}, metav1.CreateOptions{})
	case pod.Status.Phase == corev1.PodPending:
		pod = pod.DeepCopy()
		pod.Status = observed(pod, metav1.Now())
		_, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	default:
		return nil
	}
}

// observed returns the status that a kubelet would set for a pod whose containers work: they
// run, or exit with 0 if they are not restarted.
func observed(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	ends := pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
	status := pod.Status
	status.Phase = corev1.PodRunning
	ready := corev1.ConditionTrue
	if ends {
		status.Phase, ready = corev1.PodSucceeded, corev1.ConditionFalse
	}
	status.HostIP, status.PodIP = nodeAddress, nodeAddress
	status.PodIPs = []corev1.PodIP{{IP: nodeAddress}}
	status.StartTime = &now
	status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: now},
	}
	status.InitContainerStatuses = containerStatuses(pod.Spec.InitContainers, true, now)
	status.ContainerStatuses = containerStatuses(pod.Spec.Containers, ends, now)
	return status
}

func containerStatuses(containers []corev1.Container, ended bool, now metav1.Time) []corev1.ContainerStatus {
	statuses := make([]corev1.ContainerStatus, len(containers))
	for i, c := range containers {
		statuses[i] = corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "none://" + c.Name}
		started := !ended
		statuses[i].Started = &started
		if ended {
			statuses[i].State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}
			continue
		}
		statuses[i].Ready = true
		statuses[i].State.Running = &corev1.ContainerStateRunning{StartedAt: now}
	}
	return statuses
}

// registerNode creates the node, which may exist already after a restart.
func registerNode(ctx context.Context, client kubernetes.Interface) error {
	nodes := client.CoreV1().Nodes()
	_, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: NodeName, Labels: map[string]string{corev1.LabelHostname: NodeName},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	// Controllers write to the node too, so conflicts are normal.
	return errors.Join(
		changeNode(ctx, nodes.Update, nodes, func(node *corev1.Node) {
			// Admission taints a new node as not ready, and the controller that removes the
			// taint does not run here.
			node.Spec.Taints = nil
		}),
		changeNode(ctx, nodes.UpdateStatus, nodes, func(node *corev1.Node) { setReady(node, metav1.Now()) }),
	)
}

func changeNode(ctx context.Context, update func(context.Context, *corev1.Node, metav1.UpdateOptions) (*corev1.Node, error), nodes typedcorev1.NodeInterface, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(node)
		_, err = update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func setReady(node *corev1.Node, now metav1.Time) {
	node.Status.Capacity, node.Status.Allocatable = nodeCapacity(), nodeCapacity()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
}

func nodeCapacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("4"),
		corev1.ResourceMemory:           resource.MustParse("8Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             resource.MustParse("1000"),
	}
}

// Command kube runs a real Kubernetes control plane on loopback until it gets a signal. The demo of
// many clusters registers it in addition to a rik cluster. It has no node. A simulated kubelet
// reports pods as running, but nothing runs.
//
//	go run ./hack/kube -dir /var/lib/rik-clusters/kube -kubeconfig kube.kubeconfig
//
// The folder and the kubeconfig are removed at the end. RIK_BIN names the folder of kube-apiserver
// and kube-controller-manager. The default is bin in the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"rik.dev/rik/internal/testkit/kube"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("dir", "", "directory for the cluster's files; must not exist")
	kubeconfig := flag.String("kubeconfig", "", "file to write the administrator's kubeconfig to, once the cluster is ready")
	flag.Parse()
	if *dir == "" || *kubeconfig == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*dir, *kubeconfig); err != nil {
		log.Fatal(err)
	}
}

// run serves until it gets a signal, and leaves no file.
func run(dir, kubeconfig string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("creating the cluster's directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cluster, err := kube.Run(ctx, dir, kube.Options{ControllerManager: true, Kubelet: true})
	if err != nil {
		return fmt.Errorf("starting a Kubernetes control plane: %w", err)
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	if err := os.WriteFile(kubeconfig, cluster.Kubeconfig(), 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(kubeconfig)) }()
	fmt.Println("ready:", cluster.Rest().Host)
	<-ctx.Done()
	return nil
}

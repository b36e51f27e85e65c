package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
	"rik.dev/rik/internal/multicluster/kubeconfig"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/ownership"
	"rik.dev/rik/internal/rikctl/scheme"
)

const (
	// clusterNamespace is the default namespace for the kubeconfigs of registered clusters.
	clusterNamespace = "rik-clusters"
	// kubeconfigKey is the default key of a kubeconfig in the Secret of a Cluster.
	kubeconfigKey = "kubeconfig"
)

var (
	kindSecret    = corev1.SchemeGroupVersion.WithKind("Secret")
	kindNamespace = corev1.SchemeGroupVersion.WithKind("Namespace")
)

// registration holds the arguments of "cluster register".
type registration struct {
	name, file, context string
	upstream            string
	mode, namespace     string
	inline, rotate      bool
}

func (t *tool) clusterRegisterCommand() *cobra.Command {
	var r registration
	cmd := &cobra.Command{
		Use:   "register NAME --kubeconfig FILE",
		Short: "Register a cluster with a kcp",
		Long: `Register a cluster, so that a kcp imports its types and can send it objects. The kcp
connects to the cluster with the current context of FILE. Only that context is copied,
with the content of the files that it names. A Secret stores it, which is deleted with
the Cluster.

--kubeconfig and --context are those of the cluster to register. The kcp is the one in
rikctl's configuration, or in --upstream-kubeconfig.`,
		Example: cmdline.Example(`
rikctl cluster register east --kubeconfig east.yaml
rikctl cluster register west --kubeconfig ~/.kube/config --context west --mode pull
rikctl cluster register east --kubeconfig new-east.yaml --rotate`),
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			r.name = given[0]
			if err := r.check(cmd); err != nil {
				return err
			}
			t.Getter.Kubeconfig, t.Getter.Context = r.upstream, ""
			return t.register(cmd.Context(), &r)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&r.file, "kubeconfig", "", "the cluster's kubeconfig; required")
	flags.StringVar(&r.context, "context", "", "context of the cluster's kubeconfig, if not its current one")
	flags.StringVar(&r.upstream, "upstream-kubeconfig", "", "kubeconfig of the kcp, instead of rikctl's configuration")
	flags.StringVar(&r.mode, "mode", "", "where the syncer runs: push (in the kcp), pull (as an agent in the cluster) or none (you run it); the default of the kcp if empty")
	flags.StringVar(&r.namespace, "secret-namespace", clusterNamespace, "namespace of the Secret with the kubeconfig; created if it does not exist")
	flags.BoolVar(&r.inline, "inline", false, "store the kubeconfig in the Cluster itself; everyone who may read Clusters can then read it")
	flags.BoolVar(&r.rotate, "rotate", false, "replace the kubeconfig of a registered cluster")
	return cmd
}

func (r *registration) check(cmd *cobra.Command) error {
	if r.file == "" {
		return cmdline.Errorf(cmd, "--kubeconfig FILE is required: the kubeconfig that reaches the cluster")
	}
	if problems := validation.IsDNS1123Label(r.name); len(problems) > 0 {
		return cmdline.Errorf(cmd, "the name %q: %s", r.name, problems[0])
	}
	return checkMode(cmd, r.mode)
}

func (t *tool) register(ctx context.Context, r *registration) error {
	data, err := portable(r.file, r.context)
	if err != nil {
		return err
	}
	if _, err := kubeconfig.Parse(data); err != nil {
		return cmdline.New(cmdline.Program+" cluster register", fmt.Errorf("%s: %w", r.file, err))
	}
	c, err := t.upstreamClient()
	if err != nil {
		return err
	}
	if r.rotate {
		return t.rotate(ctx, c, r, data)
	}
	cluster := r.cluster(data)
	if r.inline {
		err = c.Create(ctx, cluster, ownership.File)
	} else {
		err = createWithSecret(ctx, c, cluster, data)
	}
	if err != nil {
		return ofCluster("registering", r.name, err)
	}
	_, err = fmt.Fprintf(t.Streams.Out, "cluster %s registered\n", r.name)
	return err
}

// createWithSecret writes the kubeconfig before the Cluster, so that no reader sees a Cluster
// without its Secret. If the server refuses the Cluster, createWithSecret restores the Secret.
func createWithSecret(ctx context.Context, c client.Client, cluster *workloadv1alpha1.Cluster, data []byte) error {
	// A dry run shows whether the server accepts the Cluster, before anything is written.
	if err := c.Create(ctx, cluster.DeepCopy(), ownership.File, client.DryRunAll); err != nil {
		return err
	}
	ref := cluster.Spec.KubeconfigSecretRef
	before := &corev1.Secret{}
	err := c.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, before)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading the Secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	isNew := err != nil
	secret, err := keepSecret(ctx, c, cluster, data)
	if err != nil {
		return err
	}
	if err := c.Create(ctx, cluster, ownership.File); err != nil {
		return errors.Join(err, restore(ctx, c, secret, before, isNew))
	}
	if !isNew {
		return nil
	}
	if err := controllerutil.SetOwnerReference(cluster, secret, scheme.Scheme); err != nil {
		return err
	}
	if err := c.Update(ctx, secret, ownership.File); err != nil {
		return fmt.Errorf("the cluster is registered, but its Secret %s/%s will not be deleted with it: %w", ref.Namespace, ref.Name, err)
	}
	return nil
}

// restore undoes the write of a Secret, unless the Secret has changed since.
func restore(ctx context.Context, c client.Client, written, before *corev1.Secret, isNew bool) error {
	var err error
	if isNew {
		err = c.Delete(ctx, written, client.Preconditions{UID: &written.UID, ResourceVersion: &written.ResourceVersion})
	} else {
		before.ResourceVersion = written.ResourceVersion
		err = c.Update(ctx, before, ownership.File)
	}
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("restoring the Secret %s/%s: %w", written.Namespace, written.Name, err)
}

// cluster builds the Cluster object to register.
func (r *registration) cluster(data []byte) *workloadv1alpha1.Cluster {
	cluster := &workloadv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: r.name}}
	cluster.Spec.SyncMode = workloadv1alpha1.SyncMode(r.mode)
	if r.inline {
		cluster.Spec.KubeConfig = string(data)
		return cluster
	}
	cluster.Spec.KubeconfigSecretRef = &workloadv1alpha1.SecretKeyReference{Namespace: r.namespace, Name: r.name, Key: kubeconfigKey}
	return cluster
}

// rotate replaces the kubeconfig of a cluster in the place where the present one is.
func (t *tool) rotate(ctx context.Context, c client.Client, r *registration, data []byte) error {
	cluster := &workloadv1alpha1.Cluster{}
	if err := c.Get(ctx, client.ObjectKey{Name: r.name}, cluster); err != nil {
		return ofCluster("rotating the credentials of", r.name, err)
	}
	if cluster.Spec.KubeconfigSecretRef == nil {
		cluster.Spec.KubeConfig = string(data)
		if err := c.Update(ctx, cluster, ownership.File); err != nil {
			return ofCluster("rotating the credentials of", r.name, err)
		}
	} else if _, err := keepSecret(ctx, c, cluster, data); err != nil {
		return ofCluster("rotating the credentials of", r.name, err)
	}
	_, err := fmt.Fprintf(t.Streams.Out, "cluster %s has new credentials\n", r.name)
	return err
}

// keepSecret writes the kubeconfig to the Secret that the Cluster refers to. If it creates the
// Secret for a Cluster that exists, the Cluster becomes the owner of the Secret.
func keepSecret(ctx context.Context, c client.Client, cluster *workloadv1alpha1.Cluster, data []byte) (*corev1.Secret, error) {
	ref := cluster.Spec.KubeconfigSecretRef
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ref.Namespace}}
	if err := c.Create(ctx, namespace, ownership.File); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("creating the namespace %s: %w", ref.Namespace, err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name}}
	_, err := controllerutil.CreateOrUpdate(ctx, c, secret, func() error {
		if secret.Data == nil {
			secret.Data = map[string][]byte{}
		}
		secret.Data[ref.Key] = data
		if secret.UID == "" && cluster.UID != "" {
			return controllerutil.SetOwnerReference(cluster, secret, scheme.Scheme)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("writing the Secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return secret, nil
}

// portable returns one context of a kubeconfig, with the contents of the files that it names.
// The files exist only on this machine, and the other contexts must stay private.
func portable(path, chosen string) ([]byte, error) {
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, unreadableKubeconfig(path, err)
	}
	if chosen != "" {
		config.CurrentContext = chosen
	}
	if err := clientcmd.ResolveLocalPaths(config); err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	if err := api.MinifyConfig(config); err != nil {
		return nil, cmdline.New(cmdline.Program+" cluster register", fmt.Errorf("%s: %w; --context chooses another", path, err))
	}
	if err := api.FlattenConfig(config); err != nil {
		return nil, fmt.Errorf("reading the files that %s names: %w", path, err)
	}
	if err := readTokens(config); err != nil {
		return nil, fmt.Errorf("reading the files that %s names: %w", path, err)
	}
	return clientcmd.Write(*config)
}

// unreadableKubeconfig returns an error without the text of the parser, because that quotes the
// file, which is secret.
func unreadableKubeconfig(path string, err error) error {
	if os.IsNotExist(err) || os.IsPermission(err) {
		return cmdline.New(cmdline.Program+" cluster register", err)
	}
	return cmdline.New(cmdline.Program+" cluster register", fmt.Errorf("%s: %w", path, kubeconfig.ErrForm))
}

// readTokens replaces the names of token files by the tokens in them.
func readTokens(config *api.Config) error {
	for _, user := range config.AuthInfos {
		if user.TokenFile == "" {
			continue
		}
		token, err := os.ReadFile(user.TokenFile)
		if err != nil {
			return err
		}
		user.Token, user.TokenFile = strings.TrimSpace(string(token)), ""
	}
	return nil
}

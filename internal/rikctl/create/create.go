package create

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/manifest"
	"rik.dev/rik/internal/rikctl/ownership"
)

// maxReplicas limits one "create instance", so that a typing mistake does not fill the cluster.
const maxReplicas = 10_000

// NewCommand returns the command "rikctl create".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	cmd := cmdline.Group(&cobra.Command{
		Use:   "create",
		Short: "Create workloads, instances, tenants and namespaces",
		Long:  "Create workloads, instances, tenants and namespaces. \"rikctl apply -f\" creates any type.",
	}, t.createWorkload(), t.createInstance(), t.createTenant(), t.createNamespace())
	cmd.SetFlagErrorFunc(func(of *cobra.Command, err error) error {
		usage := cmdline.New(of.CommandPath(), err)
		if of == cmd && len(cmd.Flags().Args()) > 0 {
			return cmdline.FlagError(cmd, err)
		}
		if of == cmd && (strings.Contains(err.Error(), "'f' in") || strings.Contains(err.Error(), "--filename")) {
			return cmdline.WithNext(usage, "\"rikctl apply -f FILE\" creates and changes objects of any type, and \"rikctl create workload -f FILE\" creates workloads")
		}
		return usage
	})
	return cmd
}

func (t *tool) createWorkload() *cobra.Command {
	var files []string
	var quiet bool
	cmd := &cobra.Command{
		Use:     "workload -f FILE",
		Aliases: []string{"workloads", "wl"},
		Short:   "Create workloads from a file",
		Long: `Create the workloads of a file: rik.dev objects, or definitions in the published
form (apiVersion v0 or v1, kind Pod or Function). A workload with deploy: Automatic
starts its instances. For others, "rikctl create instance" starts them.`,
		Example: cmdline.Example(`
rikctl create workload -f web.yaml
id=$(rikctl create workload -q -f web.json)`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				return cmdline.Errorf(cmd, "-f FILE is required")
			}
			return t.runCreateWorkload(cmd.Context(), files, quiet)
		},
	}
	cmd.Flags().StringSliceVarP(&files, "file", "f", nil, "file or directory with workloads; - for the standard input")
	cmd.Flags().StringSliceVar(&files, "filename", nil, "same as --file")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the ID of each workload")
	_ = cmd.MarkFlagFilename("file", "yaml", "yml", "json")
	return cmd
}

// runCreateWorkload decodes all documents before it creates the first workload, so that a
// mistake in the last document leaves nothing behind.
func (t *tool) runCreateWorkload(ctx context.Context, files []string, quiet bool) error {
	documents, err := manifest.Read(files, t.Streams.In)
	if err != nil {
		return err
	}
	namespace, err := t.Namespace()
	if err != nil {
		return err
	}
	workloads, err := manifest.DecodeWorkloads(documents, namespace)
	if err != nil {
		return err
	}
	c, err := t.Client()
	if err != nil {
		return err
	}
	for _, w := range workloads {
		if err := c.Create(ctx, w, strictly, ownership.File); err != nil {
			return fmt.Errorf("creating workload %s: %w", w.Name, err)
		}
		t.printCreatedWorkload(w, quiet)
	}
	return nil
}

// strictly makes the server refuse unknown fields.
var strictly = client.FieldValidation(metav1.FieldValidationStrict)

// printCreatedWorkload prints the text of the published client, because scripts cut the
// identifier out of it.
func (t *tool) printCreatedWorkload(w *rikv1alpha1.Workload, quiet bool) {
	if quiet {
		_, _ = fmt.Fprintln(t.Streams.Out, w.UID)
		return
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "Workload %s has been successfully created with ID : %q\n", w.Name, string(w.UID))
}

// instanceRequest holds the arguments of "create instance".
type instanceRequest struct {
	workload string
	replicas int
	name     string
	quiet    bool
}

func (t *tool) createInstance() *cobra.Command {
	var r instanceRequest
	cmd := &cobra.Command{
		Use:     "instance --workload-id ID-OR-NAME",
		Aliases: []string{"instances", "inst", "ins"},
		Short:   "Start instances of a workload",
		Long: `Start instances of a workload. Give its name, or the ID that "create workload"
printed.`,
		Example: cmdline.Example(`
rikctl create instance -w web
rikctl create instance -w 0e4c1da4-0277-4088-9f37-8f445cbe8e46 --replicas 3`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case r.workload == "":
				return cmdline.Errorf(cmd, "--workload-id is required: the ID or the name of a workload")
			case r.replicas < 1:
				return cmdline.Errorf(cmd, "--replicas must be 1 or more; \"rikctl delete instance\" deletes instances")
			case r.replicas > maxReplicas:
				return cmdline.Errorf(cmd, "--replicas must not be above %d, because each instance is a separate request; "+
					"use a workload with deploy: Automatic for more", maxReplicas)
			case r.name != "" && r.replicas > 1:
				return cmdline.Errorf(cmd, "--name cannot be used with several replicas: names are unique")
			}
			return t.runCreateInstance(cmd.Context(), r)
		},
	}
	cmd.Flags().StringVarP(&r.workload, "workload-id", "w", "", "ID or name of the workload")
	cmd.Flags().IntVarP(&r.replicas, "replicas", "r", 1, "how many instances to start")
	cmd.Flags().StringVar(&r.name, "name", "", "name of the instance; generated from the workload's name by default")
	cmd.Flags().BoolVarP(&r.quiet, "quiet", "q", false, "print only the name of each instance")
	_ = cmd.RegisterFlagCompletionFunc("workload-id", completion.ResourceNameCompletionFunc(t.Kube, "workloads.rik.dev"))
	return cmd
}

func (t *tool) runCreateInstance(ctx context.Context, r instanceRequest) error {
	c, namespace, err := t.NamespacedClient()
	if err != nil {
		return err
	}
	w, err := findWorkload(ctx, c, namespace, r.workload)
	if err != nil {
		return err
	}
	for i := range r.replicas {
		instance := newInstance(w, r.name)
		if err := c.Create(ctx, instance, strictly, ownership.File); err != nil {
			return fmt.Errorf("creating instance %d of %d of workload %s: %w", i+1, r.replicas, w.Name, err)
		}
		if r.quiet {
			_, _ = fmt.Fprintln(t.Streams.Out, instance.Name)
			continue
		}
		_, _ = fmt.Fprintf(t.Streams.Out, "Instance %s has been successfully created for workload : %s\n", instance.Name, w.Name)
	}
	if w.Spec.Deploy == rikv1alpha1.DeployAutomatic {
		_, _ = fmt.Fprintf(t.Streams.ErrOut, "note: workload %s has deploy: Automatic, so the controller deletes instances above its replicas; \"%s scale workload %s --replicas N\" starts more\n",
			w.Name, cmdline.Program, w.Name)
	}
	return nil
}

func newInstance(w *rikv1alpha1.Workload, name string) *rikv1alpha1.Instance {
	i := &rikv1alpha1.Instance{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: name},
		Spec:       rikv1alpha1.InstanceSpec{Workload: w.Name},
	}
	if name == "" {
		i.GenerateName = w.Name + "-"
	}
	return i
}

// findWorkload finds a workload by its name, or by its UID if no workload has that name.
func findWorkload(ctx context.Context, c client.Client, namespace, idOrName string) (*rikv1alpha1.Workload, error) {
	w := &rikv1alpha1.Workload{}
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: idOrName}, w)
	if err == nil {
		return w, nil
	}
	// A name may look like an ID, so search by ID only if no such name exists.
	if !apierrors.IsNotFound(err) {
		return nil, err
	}
	list := &rikv1alpha1.WorkloadList{}
	if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == idOrName {
			return &list.Items[i], nil
		}
	}
	return nil, clierror.WithNext(apierrors.NewNotFound(rikv1alpha1.Resource("workloads"), idOrName),
		fmt.Sprintf("\"rikctl get workloads -n %s\" lists the workloads; none has the name or the ID %q", namespace, idOrName))
}

func (t *tool) createNamespace() *cobra.Command {
	return &cobra.Command{
		Use:     "namespace NAME",
		Aliases: []string{"namespaces", "ns"},
		Short:   "Create a namespace",
		Args:    cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return t.create(cmd.Context(), t.Streams.Out, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: given[0]}}, "namespace")
		},
	}
}

func (t *tool) create(ctx context.Context, out io.Writer, obj client.Object, word string) error {
	c, err := t.Client()
	if err != nil {
		return err
	}
	if err := c.Create(ctx, obj, strictly, ownership.File); err != nil {
		return fmt.Errorf("creating %s %s: %w", word, obj.GetName(), err)
	}
	_, _ = fmt.Fprintf(out, "%s/%s created\n", word, obj.GetName())
	return nil
}

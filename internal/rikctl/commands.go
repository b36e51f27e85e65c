package rikctl

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/auth"
	kubedelete "k8s.io/kubectl/pkg/cmd/delete"
	"k8s.io/kubectl/pkg/cmd/diff"
	"k8s.io/kubectl/pkg/cmd/edit"
	"k8s.io/kubectl/pkg/cmd/events"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/util/completion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
)

// The groups of commands in the help.
const (
	groupRun     = "run"
	groupLook    = "look"
	groupChange  = "change"
	groupOperate = "operate"
	groupRikctl  = "rikctl"
)

func (t *tool) addCommands(root *cobra.Command) {
	for _, g := range []*cobra.Group{
		{ID: groupRun, Title: "Run software:"},
		{ID: groupLook, Title: "See what is:"},
		{ID: groupChange, Title: "Change objects of any type:"},
		{ID: groupOperate, Title: "Operate nodes:"},
		{ID: groupRikctl, Title: "About rikctl and the server:"},
	} {
		root.AddGroup(g)
	}
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupRun, t.createCommand(), t.deployCommand(), t.scaleCommand(), t.rolloutCommand(), t.logsCommand(), t.execCommand(),
		t.portForwardCommand(), t.suspendCommand(), t.resumeCommand())
	add(groupLook, t.getCommand(), t.describeCommand(), t.whyCommand(), t.planCommand(), t.whatifCommand(), t.topCommand(),
		events.NewCmdEvents(t.getter, t.streams), t.waitCommand(), t.apiCommand())
	add(groupChange, t.applyCommand(), t.deleteCommand(),
		t.diffCommand(), ownedAsFile(edit.NewCmdEdit(t.factory, t.streams)), ownedAsFile(patch.NewCmdPatch(t.factory, t.streams)),
		label.NewCmdLabel(t.factory, t.streams), annotate.NewCmdAnnotate(name, t.factory, t.streams), t.lintCommand())
	add(groupOperate, t.cordonCommand(), t.uncordonCommand(), t.drainCommand(), t.taintCommand(), t.nodeCommand(), t.tokenCommand())
	add(groupOperate, t.clusterCommand())
	add(groupRikctl, t.configCommand(), t.versionCommand(), t.proxyCommand(), apiresources.NewCmdAPIResources(t.getter, t.streams),
		explain.NewCmdExplain(name, t.factory, t.streams), auth.NewCmdAuth(t.factory, t.streams))
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(groupRikctl)
	root.SetCompletionCommandGroupID(groupRikctl)
	_ = root.RegisterFlagCompletionFunc("namespace", func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return completion.CompGetResource(t.factory, "namespace", typed), cobra.ShellCompDirectiveNoFileComp
	})
}

func (t *tool) getCommand() *cobra.Command {
	cmd := get.NewCmdGet(name, t.factory, t.streams)
	cmd.ValidArgsFunction = completion.ResourceTypeAndNameCompletionFunc(t.factory)
	kubectls := cmd.Run
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if kind, names, ok := ofKind(given); ok {
			return t.getOfKind(cmd, kind, names)
		}
		kubectls(cmd, given)
		return nil
	}
	return cmd
}

// deleteCommand is kubectl's delete, extended by the form of the published design: it deletes an
// app by its name, and reports each node that has removed it.
func (t *tool) deleteCommand() *cobra.Command {
	cmd := kubedelete.NewCmdDelete(t.factory, t.streams)
	kubectls := cmd.Run
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if kind, names, ok := ofKind(given); ok {
			if err := validateDelete(cmd, names); err != nil {
				return err
			}
			return t.deleteOfKind(cmd, func(ctx context.Context, c client.Client, namespace string) ([]rikv1alpha1.Workload, error) {
				return workloadsOf(ctx, c, kind, names, client.InNamespace(namespace))
			})
		}
		if len(given) == 1 && !chosenOtherwise(cmd) && t.noType(given[0]) {
			if err := validateDelete(cmd, given); err != nil {
				return err
			}
			return t.deleteOfKind(cmd, deletable(given[0]))
		}
		kubectls(cmd, given)
		return nil
	}
	return cmd
}

// chosenOtherwise reports whether flags select what to delete.
func chosenOtherwise(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"filename", "kustomize", "selector", "field-selector", "all", "raw"}, cmd.Flags().Changed)
}

// validateDelete refuses flags that have no effect on apps and functions.
func validateDelete(cmd *cobra.Command, names []string) error {
	if len(names) == 0 {
		return usagef(cmd, "name what is to be deleted, such as: %s delete app helloworld", name)
	}
	for _, other := range []string{"all", "all-namespaces", "selector", "field-selector", "filename", "kustomize", "raw", "force", "grace-period", "dry-run", "cascade", "output", "interactive"} {
		if cmd.Flags().Changed(other) {
			return usagef(cmd, "--%s is not for apps and functions: \"%s delete workload\" has it", other, name)
		}
	}
	return nil
}

// noType reports whether a word is certainly not the name of a type.
func (t *tool) noType(word string) bool {
	if strings.ContainsAny(word, "/,.") {
		return false
	}
	mapper, err := t.getter.ToRESTMapper()
	if err != nil {
		return false // kubectl's code reports the cause
	}
	_, err = mapper.ResourceFor(schema.GroupVersionResource{Resource: strings.ToLower(word)})
	return meta.IsNoMatchError(err)
}

// applyCommand is kubectl's apply with server-side apply as the default, because the server has
// the schemas of rik's types.
func (t *tool) applyCommand() *cobra.Command {
	cmd := apply.NewCmdApply(name, t.factory, t.streams)
	cmd.RemoveCommand(cmd.Commands()...) // the subcommands serve only client-side apply
	mergedByServer(cmd)
	cmd.Flags().Lookup("dry-run").Usage = `"none" or "server". With "server" the server says what it would do, and keeps nothing.`
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Lookup("dry-run").Value.String() == "client" {
			return usagef(cmd, "--dry-run=client is not for this: the server merges, so only --dry-run=server can say what would be")
		}
		return nil
	}
	ownedAsFile(cmd)
	kubectls := cmd.Run
	cmd.Run = nil
	t.withDeployments(cmd, func(cmd *cobra.Command, given []string) error {
		if err := t.adopt(cmd, cmd.Flags().Lookup("dry-run").Value.String() == "server"); err != nil {
			return err
		}
		kubectls(cmd, given)
		return nil
	})
	return cmd
}

// mergedByServer makes server-side apply the default of a command.
func mergedByServer(cmd *cobra.Command) {
	serverSide := cmd.Flags().Lookup("server-side")
	serverSide.DefValue = "true"
	_ = serverSide.Value.Set("true")
}

// diffCommand is kubectl's diff. It compares with the result of a dry run on the server.
func (t *tool) diffCommand() *cobra.Command {
	cmd := diff.NewCmdDiff(t.factory, t.streams)
	mergedByServer(ownedAsFile(cmd))
	kubectls := cmd.Run
	t.withDeployments(cmd, func(cmd *cobra.Command, given []string) error {
		if err := t.adopt(cmd, true); err != nil {
			return err
		}
		kubectls(cmd, given)
		return nil
	})
	return cmd
}

// withDeployments makes one of kubectl's commands read files as rikctl does: strictly, and with
// deployment files among them.
func (t *tool) withDeployments(cmd *cobra.Command, run func(cmd *cobra.Command, given []string) error) {
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		files, ok := cmd.Flags().Lookup("filename").Value.(pflag.SliceValue)
		if !ok {
			return errors.New("programmer error: --filename is no list")
		}
		replaced, dir, err := t.translated(files.GetSlice())
		if dir != "" {
			defer func() { _ = os.RemoveAll(dir) }()
		}
		if malformed := (malformedError{}); errors.As(err, &malformed) {
			return err
		}
		if err != nil {
			return usageError{cmd.CommandPath(), err}
		}
		if len(replaced) > 0 {
			if err := files.Replace(replaced); err != nil {
				return err
			}
		}
		return run(cmd, given)
	}
}

// tidy replaces the texts of kubectl's commands by rik's.
func tidy(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if text, ok := texts[cmd.Name()]; ok && cmd.Parent() == root.Root() {
			cmd.Short, cmd.Long, cmd.Example = text.short, text.long, indent(text.example)
		}
		cmd.Short, cmd.Long, cmd.Example = renamed(cmd.Short), renamed(cmd.Long), renamed(cmd.Example)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = renamed(f.Usage) })
		tidy(cmd)
	}
}

// renamed replaces kubectl's name, except in links to its documentation.
func renamed(s string) string {
	s = strings.ReplaceAll(s, "kubectl/", "\x00")
	s = strings.ReplaceAll(s, "kubectl", name)
	return strings.ReplaceAll(s, "\x00", "kubectl/")
}

func indent(example string) string {
	if example == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSpace(example), "\n", "\n  ")
}

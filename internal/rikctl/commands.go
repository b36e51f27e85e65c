package rikctl

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apiresources"
	"k8s.io/kubectl/pkg/cmd/auth"
	"k8s.io/kubectl/pkg/cmd/edit"
	"k8s.io/kubectl/pkg/cmd/events"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/label"
	"k8s.io/kubectl/pkg/cmd/patch"
	"k8s.io/kubectl/pkg/util/completion"

	"rik.dev/rik/internal/rikctl/apply"
	"rik.dev/rik/internal/rikctl/backup"
	"rik.dev/rik/internal/rikctl/cluster"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/configcmd"
	"rik.dev/rik/internal/rikctl/create"
	"rik.dev/rik/internal/rikctl/debug"
	"rik.dev/rik/internal/rikctl/deletion"
	"rik.dev/rik/internal/rikctl/describe"
	"rik.dev/rik/internal/rikctl/exec"
	"rik.dev/rik/internal/rikctl/get"
	"rik.dev/rik/internal/rikctl/image"
	"rik.dev/rik/internal/rikctl/lint"
	"rik.dev/rik/internal/rikctl/logs"
	"rik.dev/rik/internal/rikctl/negotiate"
	"rik.dev/rik/internal/rikctl/node"
	"rik.dev/rik/internal/rikctl/ownership"
	"rik.dev/rik/internal/rikctl/portforward"
	"rik.dev/rik/internal/rikctl/proxy"
	"rik.dev/rik/internal/rikctl/restore"
	"rik.dev/rik/internal/rikctl/rollout"
	"rik.dev/rik/internal/rikctl/scale"
	"rik.dev/rik/internal/rikctl/server"
	"rik.dev/rik/internal/rikctl/split"
	"rik.dev/rik/internal/rikctl/token"
	"rik.dev/rik/internal/rikctl/top"
	"rik.dev/rik/internal/rikctl/versions"
	"rik.dev/rik/internal/rikctl/wait"
	"rik.dev/rik/internal/rikctl/why"
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
		{ID: groupRun, Title: "Run workloads:"},
		{ID: groupLook, Title: "Show state:"},
		{ID: groupChange, Title: "Change objects of any type:"},
		{ID: groupOperate, Title: "Operate nodes and servers:"},
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
	add(groupRun, create.NewCommand(t.Factory), apply.NewDeployCommand(t.Factory), scale.NewCommand(t.Factory), rollout.NewCommand(t.Factory), logs.NewCommand(t.Factory), exec.NewCommand(t.Factory),
		portforward.NewCommand(t.Factory), scale.NewSuspendCommand(t.Factory), scale.NewResumeCommand(t.Factory))
	add(groupLook, get.NewCommand(t.Factory), describe.NewCommand(t.Factory), why.NewCommand(t.Factory, func(cmd *cobra.Command, given []string, output string) error {
		return split.Explain(t.Factory, cmd, given, output)
	}), split.NewPlanCommand(t.Factory), split.NewWhatifCommand(t.Factory), top.NewCommand(t.Factory),
		events.NewCmdEvents(t.Getter, t.Streams), wait.NewCommand(t.Factory), negotiate.NewCommand(t.Factory))
	add(groupChange, apply.NewCommand(t.Factory), deletion.NewCommand(t.Factory),
		apply.NewDiffCommand(t.Factory), ownership.AsFile(edit.NewCmdEdit(t.Kube, t.Streams)), ownership.AsFile(patch.NewCmdPatch(t.Kube, t.Streams)),
		label.NewCmdLabel(t.Kube, t.Streams), annotate.NewCmdAnnotate(cmdline.Program, t.Kube, t.Streams), lint.NewCommand(t.Factory))
	add(groupOperate, node.NewCordonCommand(t.Factory), node.NewUncordonCommand(t.Factory), node.NewDrainCommand(t.Factory), node.NewTaintCommand(t.Factory), node.NewCommand(t.Factory), image.NewCommand(t.Factory), token.NewCommand(t.Factory), server.NewCommand(t.Factory))
	add(groupOperate, cluster.NewCommand(t.Factory), backup.NewCommand(t.Factory), restore.NewCommand(t.Factory))
	add(groupRikctl, configcmd.NewCommand(t.Factory), versions.NewCommand(t.Factory), debug.NewCommand(t.Factory), proxy.NewCommand(t.Factory), apiresources.NewCmdAPIResources(t.Getter, t.Streams),
		explain.NewCmdExplain(cmdline.Program, t.Kube, t.Streams), auth.NewCmdAuth(t.Kube, t.Streams))
	root.AddCommand(topics()...)
	root.SetHelpCommandGroupID(groupRikctl)
	root.SetCompletionCommandGroupID(groupRikctl)
	_ = root.RegisterFlagCompletionFunc("namespace", func(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
		return completion.CompGetResource(t.Kube, "namespace", typed), cobra.ShellCompDirectiveNoFileComp
	})
}

// replaceTexts replaces the texts of kubectl's commands by rik's.
func replaceTexts(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if text, ok := texts[cmd.Name()]; ok && cmd.Parent() == root.Root() {
			cmd.Short, cmd.Long, cmd.Example = text.short, text.long, cmdline.Example(text.example)
		}
		cmd.Short, cmd.Long, cmd.Example = renamed(cmd.Short), renamed(cmd.Long), renamed(cmd.Example)
		cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = renamed(f.Usage) })
		replaceTexts(cmd)
	}
}

// renamed replaces kubectl's name, except in links to its documentation.
func renamed(s string) string {
	s = strings.ReplaceAll(s, "kubectl/", "\x00")
	s = strings.ReplaceAll(s, "kubectl", cmdline.Program)
	return strings.ReplaceAll(s, "\x00", "kubectl/")
}

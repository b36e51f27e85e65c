package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rikctl/waiting"
	"rik.dev/rik/internal/rpc/jointoken"
	"rik.dev/rik/internal/rpc/servers"
)

const (
	// removalPoll is the interval at which a removal is checked.
	removalPoll = 500 * time.Millisecond
	// tokenLife is the lifetime of the token for a replacement.
	tokenLife = 24 * time.Hour
)

// NewCommand returns the command "rikctl server".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "server",
		Short: "Manage the servers of the cluster",
		Long: `List, remove and replace the servers of the cluster. "rik server --join" adds one. With
three servers the cluster continues without any one of them.`,
	}, t.listCommand(), t.removeCommand(), t.replaceCommand())
}

func (t *tool) listCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the servers of the cluster",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := printer.CheckJSON(cmd, output); err != nil {
				return err
			}
			return t.list(cmd.Context(), output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or a table when empty")
	return cmd
}

func (t *tool) servers(ctx context.Context) (servers.List, error) {
	var list servers.List
	if err := t.Read(ctx, servers.Path, &list); err != nil {
		return list, fmt.Errorf("listing the servers: %w", err)
	}
	return list, nil
}

func (t *tool) list(ctx context.Context, asJSON bool) error {
	list, err := t.servers(ctx)
	if err != nil {
		return err
	}
	return printer.List(t.Streams, asJSON, list, "NAME\tADDRESS\tREADY\tACTIVE\tAGE\tVERSION\tPROBLEM", rows(list.Items, time.Now()),
		"The cluster has one server. \"rik server --join\" on another machine adds one.")
}

// rows returns the lines of the table, relative to the time now.
func rows(items []servers.Row, now time.Time) []string {
	var out []string
	for i := range items {
		s := &items[i]
		problem := s.Problem
		if s.Removed != nil {
			problem = strings.TrimSuffix("it is being removed: "+problem, ": ")
		}
		out = append(out, strings.Join([]string{
			s.Name, s.API, yes(s.Ready), yes(s.Active), duration.HumanDuration(now.Sub(s.Joined)), s.Version, printers.EscapeTerminal(problem),
		}, "\t"))
	}
	return out
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// removeResult is the result of "server remove" and "server replace" for scripts.
type removeResult struct {
	Server string `json:"server"`
	// Removed is false if the wait was not long enough.
	Removed bool `json:"removed"`
	// Join is how a replacement starts. "server remove" has none.
	Join *joinCommand `json:"join,omitempty"`

	printer.Outcome `json:",inline"`
}

// joinCommand has the values of the flags of the replacement.
type joinCommand struct {
	Server string `json:"server"` // --join
	Token  string `json:"token"`  // the content of --token-file
}

func (t *tool) removeCommand() *cobra.Command {
	var timeout time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a server from the cluster",
		Long: `Remove a server from the cluster, and wait until it is removed. The other servers keep
all data. The removed server stops, if it runs, and does not start again with its old
data. A node on its machine stays a node of the cluster as long as an agent runs there.`,
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			result := removeResult{Server: given[0]}
			err := t.remove(cmd.Context(), given[0], timeout)
			if err == nil {
				result.Removed = true
				_, _ = fmt.Fprintf(printer.Steps(t.Streams, output), "server %s removed\n", given[0])
			}
			return printer.Result(t.Streams.Out, output, &result, &result.Outcome, err)
		},
	}
	printer.AddOutput(cmd, &output)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "maximum time to wait until the server is removed")
	return cmd
}

// remove asks for the removal and waits until it is complete.
func (t *tool) remove(ctx context.Context, name string, timeout time.Duration) error {
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	err = c.Delete().AbsPath(servers.Path, name).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return clierror.WithNext(err, `"rikctl server list" shows the servers`)
	}
	if err != nil {
		return fmt.Errorf("removing server %s: %w", name, err)
	}
	line := waiting.Begin(ctx, t.Streams.ErrOut, waiting.Options{After: waiting.After})
	defer line.End()
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("it is not removed after %s", timeout))
	defer cancel()
	reason := ""
	for {
		list, err := t.servers(ctx)
		if err == nil {
			i := slices.IndexFunc(list.Items, func(s servers.Row) bool { return s.Name == name })
			if i < 0 {
				return nil
			}
			reason = list.Items[i].Problem
			line.Set(waiting.State{For: strings.TrimSuffix("server "+name+" to be removed: "+reason, ": ")})
		}
		if !pause.For(ctx, removalPoll) {
			return fmt.Errorf("removing server %s: %w", name, errors.Join(context.Cause(ctx), errors.New(reason)))
		}
	}
}

func (t *tool) replaceCommand() *cobra.Command {
	var timeout time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "replace NAME",
		Short: "Remove a lost server, and print how to start its replacement",
		Long: `Remove a server that is lost, and create a token for its replacement. The replacement
may have the same name. It copies the data from the other servers.`,
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := printer.CheckOutput(cmd, output); err != nil {
				return err
			}
			result := removeResult{Server: given[0]}
			err := t.replace(cmd.Context(), given[0], timeout, &result)
			if err == nil && output == "" {
				_, err = fmt.Fprintf(t.Streams.Out, `server %s removed

Start its replacement on the new machine, as root:

  echo %s > server-token && chmod 600 server-token
  rik server --join %s --token-file server-token --server-name %s
`, given[0], result.Join.Token, result.Join.Server, given[0])
			}
			return printer.Result(t.Streams.Out, output, &result, &result.Outcome, err)
		},
	}
	printer.AddOutput(cmd, &output)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "maximum time to wait until the server is removed")
	return cmd
}

// replace removes a server unless it is gone already, and creates a token. It sets result.
func (t *tool) replace(ctx context.Context, name string, timeout time.Duration, result *removeResult) error {
	list, err := t.servers(ctx)
	if err != nil {
		return err
	}
	other := ""
	for _, s := range list.Items {
		if s.Name != name && s.Ready && s.Removed == nil {
			other = s.API
		}
	}
	if other == "" {
		return fmt.Errorf("replacing server %s: no other server is ready", name)
	}
	// A server that is gone already may have been removed by an attempt before.
	if slices.ContainsFunc(list.Items, func(s servers.Row) bool { return s.Name == name }) {
		if err := t.remove(ctx, name, timeout); err != nil {
			return err
		}
	}
	result.Removed = true
	made, err := t.CreateToken(ctx, jointoken.Request{Seconds: int64(tokenLife / time.Second), Description: "replacement of server " + name}, jointoken.RoleServer)
	if err != nil {
		return fmt.Errorf("server %s is removed, and its replacement has no token: %w", name, err)
	}
	result.Join = &joinCommand{Server: other, Token: made.Token}
	return nil
}

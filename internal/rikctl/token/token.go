package token

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"rik.dev/rik/internal/rikctl/access"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/printer"
	"rik.dev/rik/internal/rpc/jointoken"
)

// tokenLife is the default lifetime of a new token.
const tokenLife = 24 * time.Hour

// NewCommand returns the command "rikctl token".
func NewCommand(factory *access.Factory) *cobra.Command {
	t := &tool{factory}
	return cmdline.Group(&cobra.Command{
		Use:   "token",
		Short: "Manage the tokens with which machines join as nodes or servers",
		Long: `Create, list and revoke join tokens. A machine becomes a node when its agent starts
with a token. The token contains the hash of the cluster's certificate authority, so
the machine sends the secret only to this cluster. The server stores only a hash of
the secret, so a token is shown once, when it is created.

A token is for nodes unless it is created with --server. A server that joins with such
a token gets the keys of the cluster, so whoever has the token controls the cluster.`,
	}, t.tokenCreateCommand(), t.tokenListCommand(), t.tokenDeleteCommand(), t.tokenRotateCommand())
}

func (t *tool) tokenCreateCommand() *cobra.Command {
	var life time.Duration
	var request jointoken.Request
	var server bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a join token and print it",
		Example: cmdline.Example(`
rikctl token create
rikctl token create --ttl 1h --description "rack 7" > node-token
rikctl token create --server --ttl 1h > server-token`),
		Args: cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if life < 0 || life > 0 && life < time.Second {
				return cmdline.Errorf(cmd, "--ttl %v is too short: it must be at least 1s, or 0 for a token that does not expire", life)
			}
			request.Seconds = int64(life / time.Second)
			role := jointoken.RoleNode
			if server {
				role = jointoken.RoleServer
			}
			made, err := t.CreateToken(cmd.Context(), request, role)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(t.Streams.Out, made.Token)
			return err
		},
	}
	cmd.Flags().DurationVar(&life, "ttl", tokenLife, "time after which the token expires; 0 for never")
	cmd.Flags().StringVar(&request.Description, "description", "", "purpose of the token")
	cmd.Flags().BoolVar(&server, "server", false, "create a token with which a machine becomes a server of the cluster and gets its keys")
	return cmd
}

func (t *tool) tokenRotateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "rotate ID",
		Short: "Replace a join token by a new one, and print it",
		Long: `Replace a join token: create one with the same role, lifetime and description, print
it, and revoke the old one. Machines that have joined keep their certificates. The
file node-token in the data directory of a server is not changed.`,
		Args: cmdline.Args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, given []string) error {
			return t.rotateToken(cmd.Context(), given[0])
		},
	}
}

func (t *tool) rotateToken(ctx context.Context, id string) error {
	list, err := t.tokens(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list.Items, func(k jointoken.Info) bool { return k.ID == id })
	if i < 0 {
		return clierror.WithNext(fmt.Errorf("there is no join token %q", id), `"rikctl token list" shows the tokens; a token's ID is its third part, between the dots`)
	}
	old := list.Items[i]
	request := jointoken.Request{Description: old.Description}
	if old.Expires != nil {
		request.Seconds = max(1, int64(old.Expires.Sub(old.Created)/time.Second))
	}
	made, err := t.CreateToken(ctx, request, cmp.Or(old.Role, jointoken.RoleNode))
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(t.Streams.Out, made.Token); err != nil {
		return err
	}
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	// Standard output has only the token, so that it can be redirected to a file.
	if err := c.Delete().AbsPath(jointoken.Path, id).Do(ctx).Error(); err != nil {
		return fmt.Errorf("the new token is valid, and token %s is not revoked: %w", id, err)
	}
	_, _ = fmt.Fprintf(t.Streams.ErrOut, "token %s revoked\n", id)
	return nil
}

func (t *tool) tokenListCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the join tokens, without their secrets",
		Args:  cmdline.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := printer.CheckJSON(cmd, output); err != nil {
				return err
			}
			return t.listTokens(cmd.Context(), output == "json")
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or a table when empty")
	return cmd
}

func (t *tool) tokens(ctx context.Context) (jointoken.List, error) {
	var list jointoken.List
	if err := t.Read(ctx, jointoken.Path, &list); err != nil {
		return list, fmt.Errorf("listing the join tokens: %w", err)
	}
	return list, nil
}

func (t *tool) listTokens(ctx context.Context, asJSON bool) error {
	list, err := t.tokens(ctx)
	if err != nil {
		return err
	}
	return printer.List(t.Streams, asJSON, list, "ID\tROLE\tAGE\tEXPIRES\tUSES\tLAST USED\tDESCRIPTION", tokenRows(list.Items, time.Now()), "There are no join tokens.")
}

// tokenRows returns the lines of the table, relative to the time now.
func tokenRows(tokens []jointoken.Info, now time.Time) []string {
	var rows []string
	for i := range tokens {
		k := &tokens[i]
		expires, used := "never", "never"
		switch {
		case k.Expires == nil:
		case !k.Expires.After(now):
			expires = "expired"
		default:
			expires = "in " + duration.HumanDuration(k.Expires.Sub(now))
		}
		if k.LastUsed != nil {
			used = duration.HumanDuration(now.Sub(*k.LastUsed)) + " ago"
		}
		var row bytes.Buffer
		for _, cell := range []string{k.ID, string(cmp.Or(k.Role, jointoken.RoleNode)), duration.HumanDuration(now.Sub(k.Created)), expires, strconv.FormatInt(k.Uses, 10), used} {
			row.WriteString(cell + "\t")
		}
		row.WriteString(printers.EscapeTerminal(k.Description))
		rows = append(rows, row.String())
	}
	return rows
}

func (t *tool) tokenDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID...",
		Short: "Revoke join tokens",
		Long: `Revoke join tokens. No machine can join with a revoked token. Nodes that have joined
keep their certificates; "rikctl delete node NAME" revokes the one of a node.`,
		Args: cmdline.Args(cobra.MinimumNArgs(1)),
		ValidArgsFunction: func(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			list, _ := t.tokens(cmd.Context()) // without an answer, completion offers no tokens
			var ids []string
			for i := range list.Items {
				ids = append(ids, list.Items[i].ID+"\t"+list.Items[i].Description)
			}
			return ids, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, given []string) error {
			var problems []error
			for _, id := range given {
				problems = append(problems, t.deleteToken(cmd.Context(), id))
			}
			return errors.Join(problems...)
		},
	}
}

func (t *tool) deleteToken(ctx context.Context, id string) error {
	c, _, err := t.RESTClient()
	if err != nil {
		return err
	}
	err = c.Delete().AbsPath(jointoken.Path, id).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return clierror.WithNext(err, `"rikctl token list" shows the tokens; a token's ID is its third part, between the dots`)
	}
	if err != nil {
		return fmt.Errorf("revoking join token %s: %w", id, err)
	}
	_, _ = fmt.Fprintf(t.Streams.Out, "token %s revoked\n", id)
	return nil
}

package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"rik.dev/rik/internal/app"
	"rik.dev/rik/internal/app/node"
	"rik.dev/rik/internal/install/layout"
	"rik.dev/rik/internal/rikctl"
	"rik.dev/rik/internal/rikctl/config"
)

// writeDocs writes the documentation of each package into a bundle.
func writeDocs(bundle string) error {
	date, err := buildTime()
	if err != nil {
		return err
	}
	source := config.Source{Getenv: func(string) string { return "" }, ReadFile: func(string) ([]byte, error) { return nil, fmt.Errorf("no configuration") }}
	for p, program := range map[layout.Package]struct {
		command *cobra.Command
		section string
		manual  string
	}{
		layout.Client: {rikctl.New(genericiooptions.NewTestIOStreamsDiscard(), source), "1", "rik user commands"},
		layout.Node:   {node.Program(), "8", "rik system administration"},
		layout.Server: {app.Program(), "8", "rik system administration"},
	} {
		header := doc.GenManHeader{Section: program.section, Manual: program.manual, Source: "rik", Date: &date}
		if err := writePages(filepath.Join(bundle, "man", string(p), "man"+program.section), program.command, header); err != nil {
			return fmt.Errorf("writing the man pages of %s: %w", p, err)
		}
		if err := writeCompletions(filepath.Join(bundle, "completions", string(p)), program.command); err != nil {
			return fmt.Errorf("writing the completions of %s: %w", p, err)
		}
		if err := writeLicenses(bundle, p, date); err != nil {
			return fmt.Errorf("writing the licenses of %s: %w", p, err)
		}
	}
	return nil
}

// writePages writes a page for a command and for each of its subcommands.
func writePages(dir string, c *cobra.Command, header doc.GenManHeader) error {
	c.InitDefaultHelpCmd()
	c.DisableAutoGenTag = true
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := writePages(dir, sub, header); err != nil {
			return err
		}
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	header.Title = strings.ToUpper(name)
	var page bytes.Buffer
	if err := doc.GenMan(c, &header, &page); err != nil {
		return err
	}
	return writeCompressed(filepath.Join(dir, name+"."+header.Section+".gz"), page.Bytes())
}

// writeCompletions writes the completions of three shells, below the directories in which
// distributions look for them.
func writeCompletions(dir string, c *cobra.Command) error {
	name := c.Name()
	var bash, zsh, fish bytes.Buffer
	if err := c.GenBashCompletionV2(&bash, true); err != nil {
		return err
	}
	if err := c.GenZshCompletion(&zsh); err != nil {
		return err
	}
	if err := c.GenFishCompletion(&fish, true); err != nil {
		return err
	}
	for path, text := range map[string][]byte{
		"bash-completion/completions/" + name:         bash.Bytes(),
		"zsh/vendor-completions/_" + name:             zsh.Bytes(),
		"fish/vendor_completions.d/" + name + ".fish": fish.Bytes(),
	} {
		if err := write(filepath.Join(dir, path), text); err != nil {
			return err
		}
	}
	return nil
}

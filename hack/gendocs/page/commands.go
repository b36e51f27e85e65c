// Package page writes the parts of the reference pages.
package page

import (
	"strings"

	"github.com/spf13/cobra"
)

// Commands describes all commands below a command, depth first and in the order of the help.
func Commands(parent *cobra.Command) string {
	page := ""
	for _, c := range parent.Commands() {
		if c.Hidden || c.Deprecated != "" || c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		page += section(c) + Commands(c)
	}
	return page
}

func section(c *cobra.Command) string {
	text := "## " + c.CommandPath() + "\n\n"
	switch {
	case c.Long != "":
		text += Fenced(c.Long)
	case c.Short != "":
		text += c.Short + ".\n"
	}
	if c.Runnable() {
		text += "\n" + Fenced(c.UseLine())
	}
	if c.Example != "" {
		text += "\nExamples:\n\n" + Fenced(c.Example)
	}
	if flags := c.NonInheritedFlags(); flags.HasAvailableFlags() {
		text += "\nFlags:\n\n" + Fenced(flags.FlagUsages())
	}
	return text + "\n"
}

// Fenced writes a text into a block of code, without blanks at the ends of lines.
func Fenced(s string) string {
	lines := strings.Split(strings.Trim(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " \t")
	}
	return "```\n" + strings.Join(lines, "\n") + "\n```\n"
}

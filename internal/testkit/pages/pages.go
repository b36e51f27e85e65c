// Package pages gives tests the commands that the documents print, so that the tests run exactly what
// a reader types. A table names the test that runs each block of commands, or the reason why none does.
//
// A test fails if it does not run a block that the table assigns to it. TestEveryBlockHasARunner fails
// for a block without a runner, for a runner without a block, and for a test that does not exist.
package pages

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Block is a fenced block of a page.
type Block struct {
	// Section is the heading above the block. Number counts the blocks of commands of the section
	// from 1; it is 0 for other blocks.
	Section  string
	Number   int
	Language string
	Text     string
}

// commands reports whether the block has commands for a shell.
func (b Block) commands() bool { return b.Language == "sh" }

func (b Block) key() string { return fmt.Sprintf("%s %d", b.Section, b.Number) }

// Page is a page whose commands a test runs.
type Page struct {
	t      testing.TB
	name   string
	blocks []Block
	taken  map[string]bool
}

// Open returns a page for the test t. The name is relative to the root of the repository, such as
// "docs/guide.md". At its end the test fails unless it has taken every block that the table assigns
// to it.
func Open(t testing.TB, name string) *Page {
	t.Helper()
	blocks, err := read(name)
	if err != nil {
		t.Fatal(err)
	}
	p := &Page{t: t, name: name, blocks: blocks, taken: map[string]bool{}}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			return
		}
		for _, missed := range p.missed() {
			t.Errorf("%s: the test did not run the block %q, which the table in internal/testkit/pages assigns to it", name, missed)
		}
	})
	return p
}

// missed returns the keys of the test's blocks that it has not taken.
func (p *Page) missed() []string {
	var keys []string
	for _, b := range p.blocks {
		if p.Mine(b) && !p.taken[b.key()] {
			keys = append(keys, b.key())
		}
	}
	return keys
}

// Mine reports whether the test has to run the block.
func (p *Page) Mine(b Block) bool {
	test, _, _ := strings.Cut(p.t.Name(), "/")
	return b.commands() && runnerOf(p.name, b).test == test
}

// All returns all blocks of the page in order, also those that are no commands. The test takes the
// blocks that it runs.
func (p *Page) All() []Block { return p.blocks }

// Take returns the commands of a block. The test must run them.
func (p *Page) Take(b Block) string {
	p.taken[b.key()] = true
	return b.Text
}

// Block takes one block of commands of a section, counted from 1. Any test can run a block, also one
// that the table assigns to another test.
func (p *Page) Block(section string, number int) string {
	p.t.Helper()
	for _, b := range p.blocks {
		if b.commands() && b.Section == section && b.Number == number {
			return p.Take(b)
		}
	}
	p.t.Fatalf("%s has no block %d of commands in the section %q", p.name, number, section)
	return ""
}

// root returns the directory of the repository. Tests run in the directories of their packages.
func root() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for at := dir; at != "/"; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
	}
	return dir
}

func read(name string) ([]Block, error) {
	text, err := os.ReadFile(filepath.Join(root(), name))
	if err != nil {
		return nil, fmt.Errorf("reading a page: %w", err)
	}
	return blocksOf(string(text)), nil
}

// fence matches a block at the beginning of a line, and one in a list.
var fence = regexp.MustCompile("(?ms)^( *)```(\\w*)\n(.*?)^ *```$")

func blocksOf(page string) []Block {
	var blocks []Block
	count := map[string]int{}
	section := ""
	for {
		at := fence.FindStringSubmatchIndex(page)
		if at == nil {
			return blocks
		}
		for line := range strings.SplitSeq(page[:at[0]], "\n") {
			if text, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); isHeading && strings.HasPrefix(line, "#") {
				section = text
			}
		}
		indent := page[at[2]:at[3]]
		b := Block{Section: section, Language: page[at[4]:at[5]], Text: page[at[6]:at[7]]}
		if indent != "" {
			b.Text = strings.ReplaceAll("\n"+b.Text, "\n"+indent, "\n")[1:]
		}
		if b.commands() {
			count[section]++
			b.Number = count[section]
		}
		blocks = append(blocks, b)
		page = page[at[1]:]
	}
}

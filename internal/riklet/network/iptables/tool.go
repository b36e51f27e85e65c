// Package iptables writes chains into the kernel and keeps them there. It finds the variant of
// iptables that the machine uses, reads the existing rules, and changes the differences in one
// transaction.
//
// It does not depend on the meaning of the rules: package proxy supplies them. A Tool runs the
// programs. A Keeper remembers what it wrote. Everything that belongs to the Keeper has the
// Prefix. The rules of other programs are neither changed nor moved, except that a jump of rik's
// is placed before them.
package iptables

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"rik.dev/rik/internal/excerpt"
)

var (
	// ErrMissing is returned if the machine has no iptables.
	ErrMissing = errors.New("iptables is not installed: install the package iptables, with iptables-restore and iptables-save in PATH or in /usr/sbin")
	// ErrUnsupported is returned if the kernel, or the installed iptables, lacks a match or a
	// target. The error that wraps it quotes the rule.
	ErrUnsupported = errors.New("iptables or the kernel of this machine does not support a rule")
)

// Prefix is the start of the name of every chain of rik's: the whole name, or followed by a dash.
const Prefix = "RIKLET"

// ours reports whether a chain is rik's, by its name.
func ours(chain string) bool { return chain == Prefix || strings.HasPrefix(chain, Prefix+"-") }

// Variant is the kernel subsystem that holds the rules. A machine can have both programs. If both
// subsystems have rules, every packet passes both, one after the other.
type Variant string

// The variants, with the names that the programs print.
const (
	NFTables Variant = "nf_tables"
	Legacy   Variant = "legacy"
)

// timeout bounds one run of a program. On a busy machine, another program may hold the lock of
// the legacy variant for long.
const timeout = 2 * time.Minute

// Tool runs the programs of one variant, in the network namespace of the thread that calls it.
type Tool struct {
	Variant       Variant
	save, restore string // absolute paths
}

// Find returns the tool whose variant the machine uses: the one that already has rules of other
// programs, or the machine's default if neither or both have. other is the tool of the second
// variant, or nil if that is not installed.
func Find(ctx context.Context) (use, other *Tool, err error) {
	byDefault, err := open(ctx, "iptables")
	if err != nil {
		return nil, nil, err
	}
	name := "iptables-legacy"
	if byDefault.Variant == Legacy {
		name = "iptables-nft"
	}
	other, err = open(ctx, name)
	if errors.Is(err, ErrMissing) {
		return byDefault, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	rules, err := byDefault.hasRules(ctx)
	if err != nil {
		return nil, nil, err
	}
	otherRules, err := other.hasRules(ctx)
	if err != nil {
		return nil, nil, err
	}
	if otherRules && !rules {
		return other, byDefault, nil
	}
	return byDefault, other, nil
}

func open(ctx context.Context, name string) (*Tool, error) {
	t := &Tool{}
	var err error
	if t.save, err = lookup(name + "-save"); err != nil {
		return nil, err
	}
	if t.restore, err = lookup(name + "-restore"); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := run(ctx, nil, &out, t.restore, "--version"); err != nil {
		return nil, err
	}
	// Before 1.8 there was one variant, and the program did not print its name.
	t.Variant = Legacy
	if strings.Contains(out.String(), string(NFTables)) {
		t.Variant = NFTables
	}
	return t, nil
}

// lookup also searches the directories where Debian and others install the program. The PATH of
// an ordinary user's shell does not contain these.
func lookup(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w (%s was not found)", ErrMissing, name)
}

// hasRules reports whether the variant has a rule that is not rik's. Rules that rik left there
// earlier must not decide.
func (t *Tool) hasRules(ctx context.Context) (bool, error) {
	others, _, err := t.InUse(ctx)
	return others, err
}

// Rules returns the rules of one chain as the program prints them, in any table.
func (t *Tool) Rules(ctx context.Context, chain string) ([]string, error) {
	var rules []string
	err := t.read(ctx, func(line string) {
		if rule, ok := strings.CutPrefix(line, "-A "+chain+" "); ok {
			rules = append(rules, rule)
		}
	})
	return rules, err
}

// RulesBelow returns the rules of all chains whose names begin with one of the prefixes.
func (t *Tool) RulesBelow(ctx context.Context, prefixes ...string) ([]string, error) {
	var rules []string
	err := t.read(ctx, func(line string) {
		for _, prefix := range prefixes {
			if below, ok := strings.CutPrefix(line, "-A "+prefix); ok {
				_, rule, _ := strings.Cut(below, " ")
				rules = append(rules, rule)
			}
		}
	})
	return rules, err
}

// Chain is a chain as the kernel has it.
type Chain struct {
	// Policy is that of a chain of the kernel's, such as DROP, or "-".
	Policy string
	// Rules are as the program prints them, without "-A NAME ".
	Rules []string
}

// Chains returns the chains of a table by name. The map is empty if the table does not exist.
func (t *Tool) Chains(ctx context.Context, table string) (map[string]Chain, error) {
	chains := map[string]Chain{}
	inside := false
	err := t.read(ctx, func(line string) {
		if name, ok := strings.CutPrefix(line, "*"); ok {
			inside = name == table
		}
		if !inside {
			return
		}
		if rest, ok := strings.CutPrefix(line, ":"); ok {
			if fields := strings.Fields(rest); len(fields) > 1 {
				chains[fields[0]] = Chain{Policy: fields[1]}
			}
		}
		if rest, ok := strings.CutPrefix(line, "-A "); ok {
			name, rule, _ := strings.Cut(rest, " ")
			c := chains[name]
			c.Rules = append(c.Rules, rule)
			chains[name] = c
		}
	})
	return chains, err
}

// InUse reports whether the variant has rules of other programs, and whether it has rules of
// rik's.
func (t *Tool) InUse(ctx context.Context) (others, own bool, err error) {
	err = t.read(ctx, func(line string) {
		if strings.HasPrefix(line, "-A ") {
			mine := strings.Contains(line, " "+Prefix)
			others, own = others || !mine, own || mine
		}
	})
	return others, own, err
}

// Program returns the name of the variant's program for single rules, such as iptables-legacy.
func (t *Tool) Program() string {
	return strings.TrimSuffix(filepath.Base(t.save), "-save")
}

// Try writes rules into the network namespace of the calling thread, to find out whether the
// kernel and the programs support them. The error is ErrUnsupported if they do not.
func (t *Tool) Try(ctx context.Context, want Ruleset) error {
	_, err := NewKeeper(t).Apply(ctx, want)
	return err
}

// read passes every line of the variant's rules to line. It does not read unused tables by name,
// because that would load them in the legacy variant.
func (t *Tool) read(ctx context.Context, line func(string)) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line(lines.Text())
		}
		err := lines.Err()
		_ = r.CloseWithError(err) // the program does not wait for a reader that is gone
		done <- err
	}()
	// The program starts on this thread, because the thread's namespace is the right one.
	err := run(ctx, nil, w, t.save)
	_ = w.Close()
	return errors.Join(err, <-done)
}

// write applies one transaction. Each table changes as a whole or not at all.
func (t *Tool) write(ctx context.Context, text []byte) error {
	err := run(ctx, bytes.NewReader(text), io.Discard, t.restore, "--noflush", "--wait")
	if err == nil {
		return nil
	}
	if line, ok := failedLine(err.Error(), text); ok {
		return fmt.Errorf("%w (at %q)", err, line)
	}
	return err
}

// maxOutput limits a program's own error in ours, in bytes.
const maxOutput = 500

func run(ctx context.Context, in io.Reader, out io.Writer, path string, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not finished after %v", timeout))
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &stderr
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	output := excerpt.Of(strings.TrimSpace(stderr.String()), maxOutput)
	if isUnsupported(output) {
		return fmt.Errorf("running %s: %w: %w: %s", filepath.Base(path), ErrUnsupported, err, output)
	}
	return fmt.Errorf("running %s: %w: %s", filepath.Base(path), err, output)
}

// isUnsupported recognizes the messages of the programs about a missing match or target. Neither
// program has a separate exit code for that.
func isUnsupported(output string) bool {
	for _, part := range []string{
		"Couldn't load match", "Couldn't load target", "No chain/target/match by that name",
		"missing kernel module", "not supported, missing", "Table does not exist",
	} {
		if strings.Contains(output, part) {
			return true
		}
	}
	return false
}

var lineNumber = regexp.MustCompile(`line:? (\d+)`)

// failedLine returns the line of the transaction that the program rejected.
func failedLine(output string, text []byte) (string, bool) {
	m := lineNumber.FindStringSubmatch(output)
	if m == nil {
		return "", false
	}
	number, err := strconv.Atoi(m[1])
	if err != nil {
		return "", false
	}
	i := 0
	for line := range bytes.Lines(text) {
		if i++; i == number {
			return strings.TrimSpace(string(line)), true
		}
	}
	return "", false
}

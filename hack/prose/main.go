// Command prose checks the language of documents, help, messages, comments and names. The rules of
// vale are under .vale. hack/prose.sh builds vale and runs this program.
//
// vale reads Markdown by itself. Of Go files, protocols and scripts this program extracts the
// texts (see extract and comments) into scratch files that vale can read. It maps the results of
// vale back to the lines of the file.
//
//	prose --vale bin/vale [--level error] [--counts] [PATH...]
//
// It prints FILE:LINE: RULE: MESSAGE for each hit, and ends with 1 if one of them is an
// error.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.vale, "vale", "bin/vale", "path of the program vale")
	flag.StringVar(&o.config, "config", ".vale/vale.ini", "vale's configuration")
	flag.StringVar(&o.level, "level", "suggestion", "the lowest level that is shown: suggestion, warning or error")
	flag.BoolVar(&o.counts, "counts", false, "print the number of hits of each rule in each directory, instead of the hits")
	flag.Parse()
	failed, err := run(o, flag.Args(), os.Stdout)
	if err != nil {
		fmt.Fprintf(os.Stderr, "prose: %v\n", err)
		os.Exit(2)
	}
	if failed {
		os.Exit(1)
	}
}

type options struct {
	vale, config, level string
	counts              bool
}

// hit is one violation of a rule.
type hit struct {
	file     string
	line     int
	rule     string
	severity string
	message  string
}

// run checks the files under paths, or all files if there are none, and reports whether
// one of the hits is an error.
func run(o options, paths []string, out io.Writer) (bool, error) {
	files, err := tracked(paths)
	if err != nil {
		return false, err
	}
	scratch, err := os.MkdirTemp("", "prose")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(scratch)
	sources, err := extractAll(files, scratch)
	if err != nil {
		return false, err
	}
	hits, err := lint(o, scratch, sources)
	if err != nil {
		return false, err
	}
	if o.counts {
		printCounts(out, hits)
	} else {
		for _, h := range hits {
			fmt.Fprintf(out, "%s:%d: %s: %s: %s\n", h.file, h.line, h.severity, h.rule, h.message)
		}
	}
	return slices.ContainsFunc(hits, func(h hit) bool { return h.severity == "error" }), nil
}

// tracked lists the files under paths that are checked.
func tracked(paths []string) ([]string, error) {
	args := append([]string{"ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"}, paths...)
	listing, err := exec.Command("git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files of git: %w", err)
	}
	var files []string
	for name := range strings.SplitSeq(string(listing), "\x00") {
		switch {
		case strings.Contains(name, "testdata/"), strings.HasPrefix(path.Base(name), "zz_generated"), strings.HasSuffix(name, ".pb.go"):
		case strings.HasSuffix(name, ".go"), strings.HasSuffix(name, ".md"), marks[path.Ext(name)] != "", path.Base(name) == "Makefile":
			if _, err := os.Stat(name); err == nil {
				files = append(files, name)
			}
		}
	}
	return files, nil
}

// source is a scratch file that vale reads. Line i of it, counted from 0, is texts[i/2]:
// an empty line follows each text, so that vale takes each as a paragraph of its own.
type source struct {
	file  string
	texts []text
}

// extractAll writes the texts into files in scratch, and returns them by the names of these files.
func extractAll(files []string, scratch string) (map[string]source, error) {
	sources := map[string]source{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var texts []text
		switch {
		case strings.HasSuffix(file, ".go"):
			if texts, err = extract(file, content); err != nil {
				return nil, err
			}
		case strings.HasPrefix(file, "docs/reference/"):
			texts = fenced(string(content))
		case path.Base(file) == "Makefile":
			texts = comments(string(content), "#")
		default:
			texts = comments(string(content), marks[path.Ext(file)])
		}
		if strings.HasSuffix(file, ".md") {
			name := filepath.Join(scratch, file)
			if err := write(name, string(content)); err != nil {
				return nil, err
			}
			sources[name] = source{file: file}
		}
		for kind, texts := range byKind(texts) {
			name := filepath.Join(scratch, fmt.Sprintf("%s.%s.txt", file, kind))
			var b strings.Builder
			for _, t := range texts {
				b.WriteString(maskDots(t.joined()))
				b.WriteString(end(t))
				b.WriteString("\n\n")
			}
			if err := write(name, b.String()); err != nil {
				return nil, err
			}
			sources[name] = source{file: file, texts: texts}
		}
	}
	return sources, nil
}

var (
	url      = regexp.MustCompile(`https?://[^\s)]*[^\s).,:;]`)
	innerDot = regexp.MustCompile(`([A-Za-z0-9_)])\.([A-Za-z0-9_(])`)
)

// maskDots replaces addresses of pages, and the dots inside names such as Config.Root, by other
// characters. vale does not end a sentence after such a name, and counts several words in it. The
// length does not change, so the columns of alerts stay right.
func maskDots(s string) string {
	s = url.ReplaceAllStringFunc(s, func(found string) string { return strings.Repeat("x", len(found)) })
	return innerDot.ReplaceAllString(s, "${1}_${2}")
}

// end returns the full stop that a text lacks, or "". Without a full stop, vale takes this text and
// the next one for one sentence.
func end(t text) string {
	if t.kind == name || strings.ContainsAny(t.joined()[len(t.joined())-1:], ".!?") {
		return ""
	}
	return "."
}

func byKind(texts []text) map[kind][]text {
	kinds := map[kind][]text{}
	for _, t := range texts {
		kinds[t.kind] = append(kinds[t.kind], t)
	}
	return kinds
}

func write(name, content string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(content), 0o600)
}

// alert is one violation in the output of vale.
type alert struct {
	Check    string
	Message  string
	Severity string
	Match    string
	Line     int
	Span     []int
}

// lint runs vale over the scratch files. It returns its alerts as hits in the files from which the
// texts come.
func lint(o options, scratch string, sources map[string]source) ([]hit, error) {
	if len(sources) == 0 {
		return nil, nil
	}
	config, err := filepath.Abs(o.config)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(o.vale, "--no-global", "--no-exit", "--output=JSON", "--minAlertLevel="+o.level, "--config="+config, scratch)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("running %s: %w: %s", o.vale, err, firstLine(output))
	}
	var found map[string][]alert
	if err := json.Unmarshal(output, &found); err != nil {
		return nil, fmt.Errorf("reading the output of %s: %w: %s", o.vale, err, firstLine(output))
	}
	var hits []hit
	for name, alerts := range found {
		s, known := sources[name]
		if !known {
			return nil, errors.New("vale reports an unknown file: " + name)
		}
		for _, a := range alerts {
			hits = append(hits, hit{file: s.file, line: s.line(a), rule: a.Check, severity: a.Severity, message: a.Message})
		}
	}
	slices.SortFunc(hits, func(a, b hit) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return slices.Compact(hits), nil
}

func firstLine(output []byte) string {
	line, _, _ := strings.Cut(string(output), "\n")
	return line
}

// line returns the line of an alert in the original file.
func (s source) line(a alert) int {
	if s.texts == nil {
		return a.Line
	}
	i := (a.Line - 1) / 2
	if i >= len(s.texts) {
		return 0
	}
	column := 0
	if len(a.Span) > 0 {
		column = a.Span[0] - 1
	}
	return s.texts[i].lineAt(column)
}

// printCounts prints how many hits of each rule each directory has.
func printCounts(out io.Writer, hits []hit) {
	counts := map[string]int{}
	for _, h := range hits {
		counts[fmt.Sprintf("%s\t%s\t%s", h.severity, h.rule, directory(h.file))]++
	}
	w := bufio.NewWriter(out)
	defer w.Flush()
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(w, "%6d\t%s\n", counts[key], key)
	}
}

// directory is the area of a file: its first three directories at most.
func directory(file string) string {
	parts := strings.Split(path.Dir(file), "/")
	return strings.Join(parts[:min(3, len(parts))], "/")
}

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// kind is the kind of a text. .vale/vale.ini has rules for each.
type kind string

// The kinds of texts.
const (
	comment kind = "comment"
	message kind = "message" // errors, events, conditions, log lines, flags
	failure kind = "failure" // messages of tests
	name    kind = "name"    // a declared name, as words
	help    kind = "help"    // printed help in docs/reference
)

// text is a paragraph of prose. Its lines are joined for vale.
type text struct {
	kind  kind
	lines []line
}

type line struct {
	number int
	text   string
}

func (t text) joined() string {
	parts := make([]string, len(t.lines))
	for i, l := range t.lines {
		parts[i] = l.text
	}
	return strings.Join(parts, " ")
}

// lineAt returns the number of the line from which a column of the joined text comes. Columns are
// in characters.
func (t text) lineAt(column int) int {
	at := 0
	for _, l := range t.lines {
		at += len([]rune(l.text)) + 1
		if column < at {
			return l.number
		}
	}
	return t.lines[len(t.lines)-1].number
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// extract returns the texts of a Go file: its comments, the messages among its string
// literals, and the names that it declares.
func extract(file string, content []byte) ([]text, error) {
	if generated.Match(content) {
		return nil, nil
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, content, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parsing %s: %w", file, err)
	}
	e := &extractor{set: set, test: strings.HasSuffix(file, "_test.go"), foreign: foreignLines(set, parsed)}
	for _, group := range parsed.Comments {
		e.comment(group)
	}
	ast.Inspect(parsed, e.visit)
	return e.texts, nil
}

type extractor struct {
	set  *token.FileSet
	test bool
	// foreign contains the lines whose messages are those of other programs.
	foreign map[int]bool
	texts   []text
}

// foreignDirective begins a comment that says that the next line, or the declaration that the
// comment documents, contains messages of other programs. rik compares with them, so that they
// cannot be changed.
const foreignDirective = "//prose:foreign"

// foreignLines returns the lines that the directive names.
func foreignLines(set *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	ends := map[int]int{}
	for _, d := range file.Decls {
		ends[set.Position(d.Pos()).Line] = set.Position(d.End()).Line
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if !strings.HasPrefix(c.Text, foreignDirective) {
				continue
			}
			first := set.Position(group.End()).Line
			last := max(first+1, ends[first+1])
			for l := first; l <= last; l++ {
				lines[l] = true
			}
		}
	}
	return lines
}

func (e *extractor) add(t text) {
	if len(t.lines) > 0 {
		e.texts = append(e.texts, t)
	}
}

var (
	directive = regexp.MustCompile(`^(?:[a-z0-9]+:[a-z]|nolint)`)
	// marker matches the markers of Kubernetes' generators, such as "// +kubebuilder:".
	marker   = regexp.MustCompile(`^\s?\+[a-z0-9]`)
	docLink  = regexp.MustCompile(`\[([A-Za-z_.*/0-9]+)\]`)
	listItem = regexp.MustCompile(`^\s*(?:[-*•]|\d+[.)])\s+`)
)

// comment adds the paragraphs of a comment. Directives, indented code and the output of examples are
// left out.
func (e *extractor) comment(group *ast.CommentGroup) {
	if e.test && strings.HasPrefix(group.Text(), "Output:") {
		return
	}
	paragraph := text{kind: comment}
	flush := func() { e.add(paragraph); paragraph = text{kind: comment} }
	for _, c := range group.List {
		first := e.set.Position(c.Pos()).Line
		isLine := strings.HasPrefix(c.Text, "//")
		for i, raw := range strings.Split(strings.TrimSuffix(c.Text, "*/"), "\n") {
			raw = strings.TrimPrefix(strings.TrimPrefix(raw, "//"), "/*")
			item := listItem.MatchString(raw)
			switch {
			case isLine && (directive.MatchString(raw) || marker.MatchString(raw)):
				continue
			case strings.TrimSpace(raw) == "":
				flush()
				continue
			case !item && strings.HasPrefix(raw, "\t"):
				flush()
				continue
			case item:
				flush()
				raw = listItem.ReplaceAllString(raw, "")
			}
			raw = docLink.ReplaceAllString(strings.TrimSpace(raw), "$1")
			paragraph.lines = append(paragraph.lines, line{first + i, raw})
		}
	}
	flush()
}

// visit adds the messages and the names below a node.
func (e *extractor) visit(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.Field:
		for _, id := range n.Names {
			e.name(id)
		}
		// The tag of a field is not a message.
		ast.Inspect(n.Type, e.visit)
		return false
	case *ast.FuncDecl:
		e.name(n.Name)
	case *ast.TypeSpec:
		e.name(n.Name)
	case *ast.ValueSpec:
		for _, id := range n.Names {
			e.name(id)
		}
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			for _, left := range n.Lhs {
				if id, ok := left.(*ast.Ident); ok {
					e.name(id)
				}
			}
		}
	case *ast.CallExpr:
		// The argument of strings.Fields is a list of words.
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Fields" {
			return false
		}
	case *ast.BinaryExpr:
		if joined, ok := concatenation(n); ok {
			e.message(n.Pos(), joined, false)
			return false
		}
	case *ast.BasicLit:
		if n.Kind == token.STRING {
			if value, err := strconv.Unquote(n.Value); err == nil {
				e.message(n.Pos(), value, strings.HasPrefix(n.Value, "`"))
			}
		}
	}
	return true
}

// concatenation returns the value of literals that are joined by +. "value" replaces all other
// operands.
func concatenation(n *ast.BinaryExpr) (string, bool) {
	if n.Op != token.ADD {
		return "", false
	}
	literals := 0
	var value func(ast.Expr) string
	value = func(x ast.Expr) string {
		switch x := x.(type) {
		case *ast.BinaryExpr:
			if x.Op == token.ADD {
				return value(x.X) + value(x.Y)
			}
		case *ast.BasicLit:
			if s, err := strconv.Unquote(x.Value); x.Kind == token.STRING && err == nil {
				literals++
				return s
			}
		}
		return "value"
	}
	joined := value(n)
	return joined, literals > 0
}

var (
	words = regexp.MustCompile(`[A-Za-z]{2,}[,;:]? [A-Za-z]{2,}`)
	verb  = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?(?:\[\d+\])?[a-zA-Z]`)
	// code matches text that is not a message: YAML, JSON, shell, SQL, HTML.
	code = regexp.MustCompile(`(?m)^\s*[A-Za-z."'_-]+:(?: |$)|[{};]\s*$|^#!|^\s*<|\b(?:SELECT|INSERT|CREATE TABLE)\b`)
	// input matches a line of a test's input: a shell script, or a DNS record.
	input = regexp.MustCompile(`&&|\|\||\$[A-Za-z({]|[<>]\s?/|2>|\b(?:echo|exit|trap|sleep|touch) [\w"'$]+;|; (?:do|done|then|fi)\b|\bIN (?:A|SRV|SOA) `)
)

// commandLine matches a line of an example, such as "rikctl get nodes".
var commandLine = regexp.MustCompile(`^(?:sudo )?(?:rikctl|kubectl|curl|rik|kcp|riklet) [a-z-]+`)

// message adds a string literal if it is prose. In tests, only failure messages are prose. Literals
// of several lines and scripts are left out there, because they are mostly input.
func (e *extractor) message(at token.Pos, value string, raw bool) {
	if !words.MatchString(value) || e.foreign[e.set.Position(at).Line] {
		return
	}
	multi := strings.Contains(strings.TrimSpace(value), "\n")
	if multi && (e.test || code.MatchString(value)) || e.test && input.MatchString(value) {
		return
	}
	number := e.set.Position(at).Line
	value = strings.ReplaceAll(verb.ReplaceAllString(value, "value"), "%%", "%")
	of := message
	if e.test {
		of = failure
	}
	paragraph := text{kind: of}
	for i, l := range strings.Split(value, "\n") {
		indented := strings.HasPrefix(l, "  ")
		if l = strings.TrimSpace(l); l == "" || indented || commandLine.MatchString(l) {
			e.add(paragraph)
			paragraph = text{kind: of}
		}
		if l == "" || commandLine.MatchString(l) {
			continue
		}
		at := number
		if raw {
			at += i
		}
		paragraph.lines = append(paragraph.lines, line{at, l})
	}
	e.add(paragraph)
}

// name adds a declared name as lower-case words.
func (e *extractor) name(id *ast.Ident) {
	if id == nil || len(id.Name) < 3 {
		return
	}
	e.add(text{kind: name, lines: []line{{e.set.Position(id.Pos()).Line, split(id.Name)}}})
}

// split returns the words of a name in camel case: "deletionTimeout" is "deletion timeout".
func split(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		upper := unicode.IsUpper(r)
		if r == '_' {
			b.WriteByte(' ')
			continue
		}
		if upper && i > 0 && runes[i-1] != '_' && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte(' ')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// fenced returns the blocks of code in a page of docs/reference, which are printed help:
// each line is a text, without the flag that it begins with.
func fenced(page string) []text {
	var texts []text
	inside := false
	for i, l := range strings.Split(page, "\n") {
		if strings.HasPrefix(l, "```") {
			inside = !inside
			continue
		}
		if l = flagName.ReplaceAllString(strings.TrimSpace(l), ""); inside && words.MatchString(l) && !commandLine.MatchString(l) {
			texts = append(texts, text{kind: help, lines: []line{{i + 1, l}}})
		}
	}
	return texts
}

var flagName = regexp.MustCompile(`^(?:-[a-zA-Z], )?--[a-z0-9-]+(?: [a-zA-Z]+)?\s{2,}`)

// marks begin a comment, by the extension of a file.
var marks = map[string]string{".sh": "#", ".proto": "//", ".service": "#"}

// comments returns the comments of a file whose lines begin with mark, or end with a comment
// after code. A line of a Makefile's help is such a comment.
func comments(content, mark string) []text {
	if mark == "" || strings.Contains(content, "DO NOT EDIT") {
		return nil
	}
	var texts []text
	paragraph := text{kind: comment}
	flush := func() {
		if len(paragraph.lines) > 0 {
			texts = append(texts, paragraph)
		}
		paragraph = text{kind: comment}
	}
	for i, l := range strings.Split(content, "\n") {
		code, prose, isComment := strings.Cut(l, mark+" ")
		code, prose = strings.TrimSpace(code), strings.TrimSpace(prose)
		switch {
		case !isComment || prose == "":
			flush()
		case code == "":
			paragraph.lines = append(paragraph.lines, line{i + 1, prose})
		case strings.HasSuffix(l[:len(l)-len(prose)], " "+mark+" ") || strings.HasSuffix(code, "#"):
			flush()
			paragraph.lines = append(paragraph.lines, line{i + 1, prose})
			flush()
		default:
			flush()
		}
	}
	flush()
	return texts
}

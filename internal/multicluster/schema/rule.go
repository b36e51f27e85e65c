package schema

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// meetRules gives a node the rules of all members, each evaluated for documents without the
// properties that the node lacks. It says why if one cannot be kept.
func meetRules(path string, ms []*member, out *node) *outcome {
	for _, m := range ms {
		if len(ms) == 1 {
			out.rules = m.rules
			return nil
		}
		for _, encoded := range m.rules {
			reduced, reason := m.reduce(encoded, out)
			if reason != "" {
				why := bottom(path, []*member{m}, "%s", reason)
				return &why
			}
			if reduced != "" {
				out.rules = append(out.rules, reduced)
			}
		}
	}
	out.rules = sortedSet(out.rules)
	return fitRules(path, ms, out)
}

// reduce is one of the member's rules, evaluated for documents of the meet: "" if it always
// holds there. reason says why there is none.
func (m *member) reduce(encoded string, out *node) (reduced, reason string) {
	var rule apiextensionsv1.ValidationRule
	mustDecode(encoded, &rule)
	was := m.whole
	if was == nil {
		was = m.node
	}
	text, missing, err := reduceRule(rule.Rule, was, out, rule.OptionalOldSelf != nil && *rule.OptionalOldSelf)
	switch {
	case err != nil || text == "false":
		return "", needs(rule.Rule, missing)
	case text == "":
		return "", ""
	case text == rule.Rule:
		return encoded, ""
	}
	rule.Rule = text
	return encode(rule), ""
}

// needs says of a rule that it cannot do without some properties.
func needs(rule string, missing []string) string {
	missing, rule = sortedSet(missing), strings.Join(strings.Fields(rule), " ")
	if len(missing) == 0 {
		return fmt.Sprintf("the rule %q compares objects in which not all fill in the same defaults", rule)
	}
	return fmt.Sprintf("the rule %q needs the field %s, which not all have", rule, joined(missing))
}

// fitRules says why a rule cannot be evaluated at a node. Of a message it leaves out what
// cannot.
func fitRules(path string, ms []*member, out *node) *outcome {
	unfit, err := compileRules(out, path == ".")
	if err != nil {
		why := bottom(path, ms, "what all have cannot be written as one schema: %v", err)
		return &why
	}
	var rules []string
	for i, encoded := range out.rules {
		var rule apiextensionsv1.ValidationRule
		mustDecode(encoded, &rule)
		if unfit[i].rule {
			why := bottom(path, ms, "the rule %q does not fit the types that all have", strings.Join(strings.Fields(rule.Rule), " "))
			return &why
		}
		if !unfit[i].message && !unfit[i].path {
			rules = append(rules, encoded)
			continue
		}
		if unfit[i].message {
			rule.MessageExpression = ""
		}
		if unfit[i].path {
			rule.FieldPath = ""
		}
		rules = append(rules, encode(rule))
	}
	out.rules = sortedSet(rules)
	return nil
}

// ruleParser reads rules without knowing any type.
var ruleParser = sync.OnceValue(func() *cel.Env {
	env, err := cel.NewEnv(cel.OptionalTypes())
	if err != nil {
		panic("programmer error: making a CEL parser: " + err.Error())
	}
	return env
})

// ruleTouches says whether a rule may see a property that appears at a path below
// the node it is at. It does when it selects the path, something below it, or a
// whole of which the path is part.
func ruleTouches(rule string, path []string) bool {
	parsed, issues := ruleParser().Parse(rule)
	// Two underscores may escape a name that is no identifier.
	if issues.Err() != nil || strings.Contains(rule, "__") {
		return true
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(parsed.NativeRep()), isWholeSelection) {
		selected, _ := selection(e)
		length := min(len(selected), len(path))
		if slices.Equal(selected[:length], path[:length]) {
			return true
		}
	}
	return false
}

// isWholeSelection finds selections from self that are not part of a longer one.
func isWholeSelection(e ast.NavigableExpr) bool {
	if _, ok := selection(e); !ok {
		return false
	}
	parent, ok := e.Parent()
	return !ok || parent.Kind() != ast.SelectKind
}

// selection is the path of properties that an expression selects from self or
// oldSelf, if that is all it does.
func selection(e ast.Expr) ([]string, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return nil, e.AsIdent() == "self" || e.AsIdent() == "oldSelf"
	case ast.SelectKind:
		path, ok := selection(e.AsSelect().Operand())
		if !ok {
			return nil, false
		}
		return append(path, e.AsSelect().FieldName()), true
	default:
		return nil, false
	}
}

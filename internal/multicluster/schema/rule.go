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

// meetRules sets the rules of a node from those of all members. Each rule is evaluated for
// documents without the properties that the node lacks. If a rule cannot be kept, it returns why.
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

// reduce evaluates one of the member's rules for documents of the meet. reduced is empty if the
// rule always holds there. reason is why the rule cannot be evaluated.
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

// needs returns the reason for a rule that cannot be evaluated without some properties.
func needs(rule string, missing []string) string {
	missing, rule = sortedSet(missing), strings.Join(strings.Fields(rule), " ")
	if len(missing) == 0 {
		return fmt.Sprintf("the rule %q compares objects in which not all fill in the same defaults", rule)
	}
	return fmt.Sprintf("the rule %q needs the field %s, which not all have", rule, joined(missing))
}

// fitRules returns why a rule cannot be evaluated at a node. If only the message expression of a
// rule cannot be evaluated, it removes that expression.
func fitRules(path string, ms []*member, out *node) *outcome {
	invalid, err := compileRules(out, path == ".")
	if err != nil {
		why := bottom(path, ms, "what all have cannot be written as one schema: %v", err)
		return &why
	}
	var rules []string
	for i, encoded := range out.rules {
		var rule apiextensionsv1.ValidationRule
		mustDecode(encoded, &rule)
		if invalid[i].rule {
			why := bottom(path, ms, "the rule %q does not fit the types that all have", strings.Join(strings.Fields(rule.Rule), " "))
			return &why
		}
		if !invalid[i].message && !invalid[i].path {
			rules = append(rules, encoded)
			continue
		}
		if invalid[i].message {
			rule.MessageExpression = ""
		}
		if invalid[i].path {
			rule.FieldPath = ""
		}
		rules = append(rules, encode(rule))
	}
	out.rules = sortedSet(rules)
	return nil
}

// ruleParser parses rules without type information.
var ruleParser = sync.OnceValue(func() *cel.Env {
	env, err := cel.NewEnv(cel.OptionalTypes())
	if err != nil {
		panic("programmer error: making a CEL parser: " + err.Error())
	}
	return env
})

// ruleTouches reports whether a rule may depend on a new property at a path below its node. It
// does if it selects the path, a part of it, or a value that contains it.
func ruleTouches(rule string, path []string) bool {
	parsed, issues := ruleParser().Parse(rule)
	// Two underscores may escape a name that is not an identifier.
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

// isWholeSelection matches selections from self that are not part of a longer one.
func isWholeSelection(e ast.NavigableExpr) bool {
	if _, ok := selection(e); !ok {
		return false
	}
	parent, ok := e.Parent()
	return !ok || parent.Kind() != ast.SelectKind
}

// selection returns the path of properties that an expression selects from self or oldSelf. ok is
// false if the expression does anything else.
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

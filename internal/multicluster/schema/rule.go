package schema

import (
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/ast"
)

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

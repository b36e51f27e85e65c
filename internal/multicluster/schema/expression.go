package schema

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common"
	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/parser"
	"k8s.io/apiserver/pkg/cel/environment"
)

// hasMacro is the macro that tests whether a property exists.
const hasMacro = "has"

var factory = ast.NewExprFactory()

// macroFreeParser parses rules without expanding macros, so that they can be printed again.
var macroFreeParser = sync.OnceValue(func() *parser.Parser {
	p, err := parser.NewParser(parser.Macros(), parser.EnableOptionalSyntax(true))
	if err != nil {
		panic("programmer error: making a CEL parser: " + err.Error())
	}
	return p
})

func parseRule(rule string) (ast.Expr, error) {
	parsed, errs := macroFreeParser().Parse(common.NewTextSource(rule))
	if len(errs.GetErrors()) > 0 {
		return nil, fmt.Errorf("parsing the rule: %s", errs.ToDisplayString())
	}
	return parsed.Expr(), nil
}

// textOf prints an expression.
func textOf(e ast.Expr) string {
	// Do not wrap lines, because a rule of several lines needs a message.
	text, err := parser.Unparse(e, ast.NewSourceInfo(nil), parser.WrapOnColumn(math.MaxInt32))
	if err != nil {
		panic("programmer error: writing a CEL expression: " + err.Error())
	}
	return text
}

func constant(value bool) ast.Expr { return factory.NewLiteral(0, types.Bool(value)) }

// orTrue replaces nil, which means true, by the constant.
func orTrue(e ast.Expr) ast.Expr {
	if e == nil {
		return constant(true)
	}
	return e
}

// isConstant reports whether an expression is the given constant. nil is true.
func isConstant(e ast.Expr, value bool) bool {
	if e == nil {
		return value
	}
	return e.Kind() == ast.LiteralKind && e.AsLiteral() == ref.Val(types.Bool(value))
}

func not(e ast.Expr) ast.Expr {
	switch {
	case isConstant(e, true):
		return constant(false)
	case isConstant(e, false):
		return constant(true)
	case e.Kind() == ast.CallKind && e.AsCall().FunctionName() == operators.LogicalNot:
		return e.AsCall().Args()[0]
	default:
		return factory.NewCall(0, operators.LogicalNot, e)
	}
}

// and returns nil if the result is always true.
func and(items ...ast.Expr) ast.Expr { return connected(operators.LogicalAnd, true, items) }

// or returns nil if the result is always true.
func or(items ...ast.Expr) ast.Expr {
	if e := connected(operators.LogicalOr, false, items); !isConstant(e, true) {
		return e
	}
	return nil
}

// connected joins conditions with an operator, without duplicates. neutral is the constant that
// does not change the result. The other constant determines it.
func connected(operator string, neutral bool, items []ast.Expr) ast.Expr {
	var joined ast.Expr
	said := map[string]bool{}
	for _, item := range items {
		for _, e := range chain(orTrue(item), operator) {
			if isConstant(e, !neutral) {
				return e
			}
			text := textOf(e)
			if isConstant(e, neutral) || said[text] {
				continue
			}
			said[text] = true
			if joined == nil {
				joined = e
				continue
			}
			joined = factory.NewCall(0, operator, joined, e)
		}
	}
	if joined == nil && !neutral {
		return constant(false)
	}
	return joined
}

// closedEnv evaluates expressions without variables.
var closedEnv = sync.OnceValue(func() *cel.Env {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).StoredExpressionsEnv()
})

// evaluated returns the value of an expression without variables as a literal. Other expressions
// stay as they are. fails is true if the evaluation fails.
func evaluated(e ast.Expr) (value ast.Expr, fails bool) {
	if mentionsSelf(e) {
		return e, false
	}
	compiled, issues := closedEnv().Compile(textOf(e))
	if issues.Err() != nil {
		return e, false
	}
	program, err := closedEnv().Program(compiled, cel.CostLimit(1_000_000))
	if err != nil {
		return e, false
	}
	result, _, err := program.Eval(map[string]any{})
	if err != nil {
		return e, true
	}
	switch result.(type) {
	case types.Bool, types.Int, types.Double, types.String:
		return factory.NewLiteral(0, result), false
	default:
		return e, false
	}
}

func mentionsSelf(e ast.Expr) bool {
	idents := ast.MatchDescendants(ast.NavigateAST(ast.NewAST(e, ast.NewSourceInfo(nil))), ast.KindMatcher(ast.IdentKind))
	return slices.ContainsFunc(idents, func(i ast.NavigableExpr) bool { return i.AsIdent() == "self" || i.AsIdent() == "oldSelf" })
}

func sortedKeysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

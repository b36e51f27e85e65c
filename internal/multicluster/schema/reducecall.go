package schema

import (
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// call evaluates a call of a function, an operator or a macro.
func (r *reducer) call(e ast.Expr, s *scope) (operand, error) {
	c := e.AsCall()
	switch c.FunctionName() {
	case operators.LogicalOr:
		return r.logical(chain(e, operators.LogicalOr), s, false)
	case operators.LogicalAnd:
		return r.logical(chain(e, operators.LogicalAnd), s, true)
	case operators.LogicalNot:
		o, err := r.condition(c.Args()[0], s)
		if err != nil || o.fails() {
			return failure, err
		}
		if o.isTrue != nil {
			return operand{isTrue: o.isFalse, isFalse: o.isTrue}, nil
		}
		return operand{expr: not(o.expr), sure: o.sure}, nil
	case operators.Conditional:
		return r.conditional(c.Args(), s)
	case hasMacro:
		if len(c.Args()) == 1 && c.Args()[0].Kind() == ast.SelectKind {
			return r.has(c.Args()[0], s)
		}
	case operators.OptSelect:
		return r.optional(e, s)
	case operators.Index, operators.OptIndex:
		return r.index(e, s)
	case operators.Equals, operators.NotEquals:
		if err := r.equality(c.Args(), s); err != nil {
			return failure, err
		}
	}
	if c.IsMemberFunction() && isMacro(c) {
		return r.macro(e, s)
	}
	return r.function(e, s)
}

// chain returns the operands that an operator connects, from left to right.
func chain(e ast.Expr, operator string) []ast.Expr {
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operator {
		return []ast.Expr{e}
	}
	var items []ast.Expr
	for _, arg := range e.AsCall().Args() {
		items = append(items, chain(arg, operator)...)
	}
	return items
}

// logical evaluates the operands of && or ||. One operand may determine the result although
// another one fails.
func (r *reducer) logical(items []ast.Expr, s *scope, conjunction bool) (operand, error) {
	var yes, no, exprs []ast.Expr
	split := false
	for _, item := range items {
		o, err := r.condition(item, s)
		if err != nil {
			return failure, err
		}
		yes, no, exprs = append(yes, o.yes()), append(no, o.no()), append(exprs, o.expr)
		split = split || o.isTrue != nil || o.defined() != nil
		s = s.with(factsOf(item, conjunction))
	}
	join, joinNo := or, and
	if conjunction {
		join, joinNo = and, or
	}
	if !split {
		return operand{expr: orTrue(join(exprs...))}, nil
	}
	return decided(join(yes...), joinNo(no...)), nil
}

// decided returns a condition from the expressions for when it is true and when it is false.
func decided(isTrue, isFalse ast.Expr) operand {
	isTrue, isFalse = orTrue(isTrue), orTrue(isFalse)
	switch {
	case isConstant(isTrue, true) || isConstant(isFalse, true):
		return operand{expr: constant(isConstant(isTrue, true))}
	case isConstant(isTrue, false) && isConstant(isFalse, false):
		return failure
	default:
		return operand{isTrue: isTrue, isFalse: isFalse}
	}
}

// factsOf returns what exists if a condition is true, or if it is false.
func factsOf(e ast.Expr, isTrue bool) []string {
	if e.Kind() != ast.CallKind {
		return nil
	}
	c := e.AsCall()
	operator := operators.LogicalOr
	if isTrue {
		operator = operators.LogicalAnd
	}
	var facts []string
	switch {
	case c.FunctionName() == operators.LogicalNot:
		return factsOf(c.Args()[0], !isTrue)
	case c.FunctionName() == operator:
		for _, arg := range c.Args() {
			facts = append(facts, factsOf(arg, isTrue)...)
		}
	case isTrue && c.FunctionName() == hasMacro && len(c.Args()) == 1:
		facts = append(facts, textOf(c.Args()[0]))
	}
	return facts
}

func (r *reducer) conditional(args []ast.Expr, s *scope) (operand, error) {
	condition, err := r.condition(args[0], s)
	if err != nil || condition.fails() {
		return failure, err
	}
	yes, no := condition.yes(), condition.no()
	var either [2]operand
	for i, taken := range []ast.Expr{yes, no} {
		either[i] = failure
		if isConstant(taken, false) {
			continue
		}
		if either[i], err = r.walk(args[i+1], s.with(factsOf(args[0], i == 0))); err != nil {
			return failure, err
		}
		if isConstant(taken, true) {
			return either[i], nil
		}
		if either[i], err = r.used(either[i]); err != nil {
			return failure, err
		}
	}
	if either[0].isTrue != nil || either[1].isTrue != nil {
		return decided(or(and(yes, either[0].yes()), and(no, either[1].yes())), or(and(yes, either[0].no()), and(no, either[1].no()))), nil
	}
	sure := or(and(yes, either[0].defined()), and(no, either[1].defined()))
	if condition.defined() == nil && either[0].defined() == nil && either[1].defined() == nil {
		sure = nil
	}
	switch {
	case either[0].fails() && either[1].fails():
		return failure, nil
	case either[0].fails():
		return operand{expr: either[1].asValue(), sure: sure}, nil
	case either[1].fails():
		return operand{expr: either[0].asValue(), sure: sure}, nil
	default:
		return operand{expr: factory.NewCall(0, operators.Conditional, condition.asValue(), either[0].asValue(), either[1].asValue()), sure: sure}, nil
	}
}

// has evaluates the test whether a property exists.
func (r *reducer) has(e ast.Expr, s *scope) (operand, error) {
	o, err := r.walk(e.AsSelect().Operand(), s)
	field := e.AsSelect().FieldName()
	switch {
	case err != nil || o.fails():
		return failure, err
	case o.none:
		return operand{expr: constant(false)}, nil
	case o.known != nil:
		p, err := r.knownProperty(o, field)
		return operand{expr: constant(!p.fails()), sure: o.sure}, err
	}
	there, dropped, err := r.child(o, field, s)
	switch {
	case err != nil:
		return failure, err
	case dropped && there.known != nil:
		return operand{expr: constant(true), sure: there.sure}, nil
	case dropped:
		return operand{expr: constant(false), sure: and(o.sure, s.guards(o))}, nil
	default:
		return operand{expr: factory.NewCall(0, hasMacro, factory.NewSelect(0, o.expr, field)), sure: o.sure}, nil
	}
}

// optional evaluates x.?field.
func (r *reducer) optional(e ast.Expr, s *scope) (operand, error) {
	args := e.AsCall().Args()
	o, err := r.walk(args[0], s)
	if err != nil || o.fails() || o.none {
		return o, err
	}
	field, ok := stringOf(args[1])
	if !ok || o.known != nil {
		return failure, errIrreducible
	}
	there, dropped, err := r.child(o, field, s)
	switch {
	case err != nil:
		return failure, err
	case dropped && there.known != nil:
		value, err := r.used(there)
		return operand{expr: factory.NewMemberCall(0, "of", factory.NewIdent(0, "optional"), value.expr), sure: there.sure, optional: true}, err
	case dropped:
		empty := emptyOptional
		empty.sure = and(o.sure, s.guards(o))
		return empty, nil
	default:
		return operand{expr: factory.NewCall(0, operators.OptSelect, o.expr, args[1]), sure: o.sure, of: there.of, optional: true, source: e}, nil
	}
}

func stringOf(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().(types.String)
	return string(text), ok
}

// index evaluates x[i] for a list, a map, and a map whose keys are properties in the meet.
func (r *reducer) index(e ast.Expr, s *scope) (operand, error) {
	args, function := e.AsCall().Args(), e.AsCall().FunctionName()
	o, err := r.walk(args[0], s)
	if err != nil || o.fails() || o.none {
		return o, err
	}
	if key, ok := stringOf(args[1]); ok && function == operators.Index && o.of != nil && o.known == nil && o.of.was.rest == mapped && o.of.is.rest == closed {
		r.touched = true
		field, _ := apiservercel.Escape(key)
		return r.property(factory.NewSelect(0, args[0], field), o, field, s)
	}
	used, err := r.used(o)
	if err != nil {
		return failure, err
	}
	i, err := r.condition(args[1], s)
	if err != nil || i.fails() {
		return failure, err
	}
	value := operand{
		expr: factory.NewCall(0, function, used.asValue(), i.asValue()), sure: and(used.defined(), i.defined()),
		source: e, optional: o.optional || function == operators.OptIndex,
	}
	if o.of != nil {
		value.of = o.of.values()
	}
	return value, nil
}

// values returns the place of the items of a list or the values of a map.
func (p *place) values() *place {
	switch {
	case p.was.has(arrays) && p.is.has(arrays):
		return &place{was: p.was.element(), is: p.is.element(), present: true}
	case p.was.rest == mapped && p.is.rest == mapped:
		return &place{was: p.was.additional, is: p.is.additional, present: true}
	default:
		return nil
	}
}

// equality refuses the comparison of two objects for which the meet lacks different defaults.
// They may be equal in the meet and differ in the member.
func (r *reducer) equality(args []ast.Expr, s *scope) error {
	var of [2]*place
	for i, arg := range args {
		o, err := r.walk(arg, s)
		if err != nil {
			return err
		}
		of[i] = o.of
	}
	for i, p := range of {
		other := of[1-i]
		if p != nil && (other == nil || other.was != p.was) && losesDefault(p.was, p.is) {
			return errIrreducible
		}
	}
	return nil
}

// losesDefault reports whether a member fills in a property that the meet lacks.
func losesDefault(was, is *node) bool {
	for key, p := range was.properties {
		value := is.value(key)
		if value == nil && p.fallback != "" || value != nil && losesDefault(p, value) {
			return true
		}
	}
	return was.items != nil && losesDefault(was.items, is.element()) ||
		was.rest == mapped && is.rest == mapped && losesDefault(was.additional, is.additional)
}

// function evaluates a call that fails if an argument fails.
func (r *reducer) function(e ast.Expr, s *scope) (operand, error) {
	c := e.AsCall()
	args := c.Args()
	if c.IsMemberFunction() {
		target, err := r.walk(c.Target(), s)
		if err != nil {
			return failure, err
		}
		if target.none {
			return r.emptyCall(target, c, s)
		}
		args = append([]ast.Expr{c.Target()}, args...)
	}
	exprs, sure, err := r.all(args, s)
	if err != nil || isConstant(sure, false) {
		return failure, err
	}
	var called ast.Expr
	if c.IsMemberFunction() {
		called = factory.NewMemberCall(0, c.FunctionName(), exprs[0], exprs[1:]...)
	} else {
		called = factory.NewCall(0, c.FunctionName(), exprs...)
	}
	if !r.touched || c.FunctionName() == "dyn" {
		return operand{expr: called, sure: sure}, nil
	}
	value, fails := evaluated(called)
	if fails {
		return failure, nil
	}
	return operand{expr: value, sure: sure}, nil
}

// emptyCall evaluates a function of an empty optional.
func (r *reducer) emptyCall(empty operand, c ast.CallExpr, s *scope) (operand, error) {
	switch c.FunctionName() {
	case "hasValue":
		return operand{expr: constant(false), sure: empty.sure}, nil
	case "orValue", "or":
		o, err := r.walk(c.Args()[0], s)
		if err != nil || empty.sure == nil {
			return o, err
		}
		o, err = r.used(o)
		return operand{expr: o.asValue(), sure: and(empty.sure, o.defined()), optional: o.optional}, err
	case "value":
		return failure, nil
	default:
		return failure, errIrreducible
	}
}

func isMacro(c ast.CallExpr) bool {
	args := c.Args()
	ident := func(i int) bool { return len(args) > i && args[i].Kind() == ast.IdentKind }
	switch c.FunctionName() {
	case "all", "exists", "exists_one", "existsOne":
		return ident(0) && (len(args) == 2 || len(args) == 3 && ident(1))
	case "filter", "optMap", "optFlatMap":
		return ident(0) && len(args) == 2
	case "map":
		return ident(0) && (len(args) == 2 || len(args) == 3)
	default:
		return false
	}
}

// macro evaluates a macro over the items of a list or map.
func (r *reducer) macro(e ast.Expr, s *scope) (operand, error) {
	c := e.AsCall()
	over, err := r.walk(c.Target(), s)
	if err != nil || over.fails() {
		return failure, err
	}
	name, args := c.FunctionName(), c.Args()
	if name == "optMap" || name == "optFlatMap" {
		return r.ofOptional(over, name, args, s)
	}
	of, fromDefault := over.of, over.known != nil
	if over, err = r.used(over); err != nil {
		return failure, err
	}
	variables := args[:1]
	if name != "map" && name != "filter" && len(args) == 3 {
		variables = args[:2]
	}
	for i, v := range variables {
		item := operand{expr: v}
		if of != nil && (of.was.has(arrays) && i == len(variables)-1 || of.was.rest == mapped && i == 1) {
			item.of = of.values()
		}
		s = &scope{name: v.AsIdent(), value: item, up: s}
	}
	var bodies []operand
	for _, body := range args[len(variables):] {
		o, err := r.condition(body, s)
		if err != nil {
			return failure, err
		}
		bodies = append(bodies, o)
	}
	each := func(function string, body ...ast.Expr) ast.Expr {
		for i := range body {
			body[i] = orTrue(body[i])
		}
		return factory.NewMemberCall(0, function, over.asValue(), slices.Concat(variables, body)...)
	}
	result, err := quantified(name, over, bodies, each)
	if err == nil && fromDefault && result.expr != nil {
		value, fails := evaluated(result.expr)
		if fails {
			return failure, nil
		}
		result.expr = value
	}
	return result, err
}

// quantified combines the results for all items. If one item determines the result, it does not
// matter that others fail.
func quantified(name string, over operand, bodies []operand, each func(string, ...ast.Expr) ast.Expr) (operand, error) {
	body := bodies[len(bodies)-1]
	whole := !slices.ContainsFunc(bodies, func(o operand) bool { return o.defined() != nil })
	switch name {
	case "all", "exists":
		other := map[string]string{"all": "exists", "exists": "all"}[name]
		if whole {
			// The body uses no property, so the result is the same for every item, if there is
			// one.
			if isConstant(body.expr, name == "all") {
				return operand{expr: constant(name == "all"), sure: over.there()}, nil
			}
			return operand{expr: each(name, body.expr), sure: over.sure}, nil
		}
		isTrue, isFalse := each(name, body.yes()), each(other, body.no())
		if isConstant(body.no(), false) && other == "exists" {
			isFalse = constant(false)
		}
		if isConstant(body.yes(), false) && name == "exists" {
			isTrue = constant(false)
		}
		return decided(and(over.sure, isTrue), and(over.sure, isFalse)), nil
	case "exists_one", "existsOne", "filter":
		sure := over.sure
		if !whole {
			sure = and(sure, each("all", body.defined()))
		}
		return operand{expr: each(name, body.yes()), sure: sure}, nil
	default: // the macro map
		if !whole {
			return failure, errIrreducible
		}
		exprs := make([]ast.Expr, len(bodies))
		for i := range bodies {
			exprs[i] = bodies[i].asValue()
		}
		return operand{expr: each(name, exprs...), sure: over.sure}, nil
	}
}

// there returns the condition under which the range of a macro exists.
func (o operand) there() ast.Expr {
	if o.expr != nil && o.expr.Kind() == ast.SelectKind && o.of != nil && !o.of.present {
		return and(o.sure, factory.NewCall(0, hasMacro, o.expr))
	}
	return o.sure
}

// ofOptional evaluates a macro over the value of an optional.
func (r *reducer) ofOptional(over operand, name string, args []ast.Expr, s *scope) (operand, error) {
	if over.none {
		return over, nil
	}
	item := operand{expr: args[0]}
	if over.of != nil {
		item.of = &place{was: over.of.was, is: over.of.is, present: true}
	}
	body, err := r.condition(args[1], &scope{name: args[0].AsIdent(), value: item, up: s})
	if err != nil {
		return failure, err
	}
	if body.defined() != nil {
		return failure, errIrreducible
	}
	return operand{expr: factory.NewMemberCall(0, name, over.expr, args[0], body.asValue()), sure: over.sure, optional: true}, nil
}

package schema

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// errIrreducible means that a rule uses a dropped property in a way that cannot be evaluated
// without a document.
var errIrreducible = errors.New("the rule cannot be evaluated in part")

// place is the schema of the value of an expression, in the member and in the meet.
type place struct {
	was, is *node
	// present is true if every document of the meet has the value.
	present bool
}

// operand is an evaluated expression. It has one of three forms:
//
//   - A value: expr, which is defined where sure is true. A nil sure is always true.
//   - A condition whose parts are not defined everywhere. isTrue and isFalse are the conditions
//     under which it is true and false. Otherwise its evaluation fails.
//   - A default of a dropped property: known is set.
type operand struct {
	expr, sure      ast.Expr
	isTrue, isFalse ast.Expr
	known           *knownValue
	// of is the place of a value in the schema, or nil if it has none.
	of *place
	// optional is true if the value is an optional of a value in the schema. none is true if it
	// is known to be empty.
	optional, none bool
	// source is the expression in the rule.
	source ast.Expr
	// guard is the condition under which the object of the value exists.
	guard ast.Expr
}

// knownValue is a part of a default.
type knownValue struct {
	value any
	node  *node
}

// reducer evaluates the parts of one rule that do not depend on a document. A property that the
// meet lacks does not exist, or has the member's default.
type reducer struct {
	// touched is true if the rule has changed.
	touched bool
	// missing are the names of the properties that the rule uses and the meet lacks.
	missing []string
}

// scope contains the variables, and the facts about what exists.
type scope struct {
	name  string
	value operand
	facts map[string]bool
	up    *scope
}

func (s *scope) lookup(name string) (operand, bool) {
	for at := s; at != nil; at = at.up {
		if at.name == name {
			return at.value, true
		}
	}
	return operand{}, false
}

// knows reports whether an earlier has() has established that an expression exists.
func (s *scope) knows(selected string) bool {
	for at := s; at != nil; at = at.up {
		if at.facts[selected] {
			return true
		}
		// Facts from an outer scope may be about another variable with that name.
		if at.name != "" && at.up != nil {
			return false
		}
	}
	return false
}

func (s *scope) with(facts []string) *scope {
	if len(facts) == 0 {
		return s
	}
	inner := &scope{facts: map[string]bool{}, up: s}
	for _, f := range facts {
		inner.facts[f] = true
	}
	return inner
}

// reduceRule evaluates a member's rule for documents of the meet. If the meet has everything that
// the rule uses, it returns the rule unchanged. If the rule always holds, it returns an empty
// string.
func reduceRule(rule string, was, is *node, optionalOld bool) (reduced string, missing []string, err error) {
	parsed, err := parseRule(rule)
	if err != nil {
		return rule, nil, nil //nolint:nilerr // what cannot be parsed is left to the compiler
	}
	r := &reducer{}
	root := func(name string, optional bool) operand {
		e := factory.NewIdent(0, name)
		return operand{expr: e, source: e, of: &place{was: was, is: is, present: true}, optional: optional}
	}
	s := &scope{name: "oldSelf", value: root("oldSelf", optionalOld)}
	s = &scope{name: "self", value: root("self", false), up: s}
	result, err := r.condition(parsed, s)
	if !r.touched && err == nil {
		return rule, nil, nil
	}
	if err != nil {
		return rule, r.missing, err
	}
	if is := result.yes(); !isConstant(is, true) {
		return textOf(is), r.missing, nil
	}
	return "", r.missing, nil
}

// yes returns the expression for when a condition is true.
func (o operand) yes() ast.Expr {
	if o.isTrue != nil {
		return o.isTrue
	}
	if o.expr == nil {
		return constant(false)
	}
	return and(o.sure, o.expr)
}

// no returns the expression for when a condition is false.
func (o operand) no() ast.Expr {
	if o.isFalse != nil {
		return o.isFalse
	}
	if o.expr == nil {
		return constant(false)
	}
	return and(o.sure, not(o.expr))
}

// defined returns the expression for when the evaluation does not fail.
func (o operand) defined() ast.Expr {
	switch {
	case o.isTrue != nil:
		return or(o.isTrue, o.isFalse)
	case o.expr == nil && o.known == nil:
		return constant(false)
	default:
		return o.sure
	}
}

func (o operand) fails() bool { return isConstant(o.defined(), false) }

var failure = operand{sure: constant(false)}

// condition evaluates an expression whose value is a boolean.
func (r *reducer) condition(e ast.Expr, s *scope) (operand, error) {
	o, err := r.walk(e, s)
	if err != nil {
		return o, err
	}
	return r.used(o)
}

// used converts an operand to an expression of the type that the member's rule expects.
func (r *reducer) used(o operand) (operand, error) {
	switch {
	case o.isTrue != nil || o.fails():
		return o, nil
	case o.known != nil:
		e, err := literal(o.known.value, o.known.node)
		return operand{expr: e, sure: o.sure}, err
	case o.of == nil || o.optional:
		return o, nil
	}
	switch was, is := o.of.was.kinds, o.of.is.kinds; {
	case was == is:
	case was == numbers && is == integers:
		r.touched = true
		o.expr = factory.NewCall(0, "double", o.expr)
	case was == intOrString:
		r.touched = true
		o.expr = factory.NewCall(0, "dyn", o.expr)
	}
	return o, nil
}

// walk evaluates an expression.
func (r *reducer) walk(e ast.Expr, s *scope) (operand, error) {
	switch e.Kind() {
	case ast.IdentKind:
		if o, found := s.lookup(e.AsIdent()); found {
			o.source = e
			return o, nil
		}
		return operand{expr: e}, nil
	case ast.SelectKind:
		o, err := r.walk(e.AsSelect().Operand(), s)
		if err != nil {
			return o, err
		}
		return r.property(e, o, e.AsSelect().FieldName(), s)
	case ast.CallKind:
		return r.call(e, s)
	case ast.ListKind:
		elements, sure, err := r.all(e.AsList().Elements(), s)
		if err != nil || isConstant(sure, false) {
			return failure, err
		}
		return operand{expr: factory.NewList(0, elements, e.AsList().OptionalIndices()), sure: sure}, nil
	case ast.MapKind:
		return r.mapLiteral(e, s)
	default:
		return operand{expr: e}, nil
	}
}

// all evaluates arguments of an expression that fails if one of them fails.
func (r *reducer) all(from []ast.Expr, s *scope) (exprs []ast.Expr, sure ast.Expr, err error) {
	for _, e := range from {
		o, err := r.condition(e, s)
		if err != nil {
			return nil, nil, err
		}
		exprs, sure = append(exprs, o.asValue()), and(sure, o.defined())
	}
	return exprs, sure, nil
}

func (o operand) asValue() ast.Expr {
	if o.isTrue != nil {
		return o.isTrue
	}
	return o.expr
}

func (r *reducer) mapLiteral(e ast.Expr, s *scope) (operand, error) {
	var entries []ast.EntryExpr
	var sure ast.Expr
	for _, entry := range e.AsMap().Entries() {
		m := entry.AsMapEntry()
		both, defined, err := r.all([]ast.Expr{m.Key(), m.Value()}, s)
		if err != nil {
			return failure, err
		}
		entries, sure = append(entries, factory.NewMapEntry(0, both[0], both[1], m.IsOptional())), and(sure, defined)
	}
	if isConstant(sure, false) {
		return failure, nil
	}
	return operand{expr: factory.NewMap(0, entries), sure: sure}, nil
}

// property selects a property of an operand.
func (r *reducer) property(e ast.Expr, o operand, field string, s *scope) (operand, error) {
	switch {
	case o.none:
		return o, nil
	case o.fails():
		return failure, nil
	case o.known != nil:
		return r.knownProperty(o, field)
	}
	there, dropped, err := r.child(o, field, s)
	if err != nil {
		return failure, err
	}
	if dropped {
		return there, nil
	}
	return operand{expr: factory.NewSelect(0, o.expr, field), sure: o.sure, of: there.of, optional: o.optional, source: e, guard: s.guards(o)}, nil
}

// child returns the place of a property of an operand. If the meet has dropped the property, it
// returns its value in the member.
func (r *reducer) child(o operand, field string, s *scope) (there operand, dropped bool, err error) {
	if o.of == nil {
		return operand{}, false, nil
	}
	key, ok := apiservercel.Unescape(field)
	if !ok {
		key = field
	}
	was, is := o.of.was.value(key), o.of.is.value(key)
	switch {
	case was == nil:
		return operand{}, false, nil
	case is != nil:
		return operand{of: &place{was: was, is: is, present: o.of.is.requires(key) || is.fallback != ""}}, false, nil
	}
	r.touched = true
	r.missing = append(r.missing, key)
	if was.fallback == "" {
		if o.optional {
			return emptyOptional, true, nil
		}
		return failure, true, nil
	}
	if o.optional {
		return failure, true, errIrreducible
	}
	value, err := filled(was)
	return operand{known: &knownValue{value, was}, sure: and(o.sure, s.guards(o))}, true, err
}

var emptyOptional = operand{expr: factory.NewMemberCall(0, "none", factory.NewIdent(0, "optional")), optional: true, none: true}

func (r *reducer) knownProperty(o operand, field string) (operand, error) {
	object, ok := o.known.value.(map[string]any)
	if !ok {
		return failure, errIrreducible
	}
	key, escaped := apiservercel.Unescape(field)
	if !escaped {
		key = field
	}
	value, found := object[key]
	switch {
	case !found:
		return failure, nil
	case value == nil || o.known.node.value(key) == nil:
		return failure, errIrreducible
	default:
		return operand{known: &knownValue{value, o.known.node.value(key)}, sure: o.sure}, nil
	}
}

// guards returns the condition under which an operand exists and is not null, unless other facts
// imply it.
func (s *scope) guards(o operand) ast.Expr {
	if o.of == nil || o.optional || o.source == nil {
		return nil
	}
	var there ast.Expr
	switch o.source.Kind() {
	case ast.IdentKind:
	case ast.SelectKind:
		if there = o.guard; !o.of.present && !s.knows(textOf(o.source)) {
			there = factory.NewCall(0, hasMacro, o.expr)
		}
	default:
		// The comparison of an element with itself fails if the element does not exist.
		there = factory.NewCall(0, operators.Equals, o.expr, o.expr)
	}
	if o.of.is.nullable {
		there = and(there, factory.NewCall(0, operators.NotEquals, o.expr, factory.NewLiteral(0, types.NullValue)))
	}
	return there
}

// literal returns a part of a default as a CEL literal.
func literal(value any, n *node) (ast.Expr, error) {
	if n.nullable || slices.ContainsFunc(n.formats, func(f string) bool { return typedFormats[f] }) {
		return nil, errIrreducible
	}
	e, err := plainLiteral(value, n)
	if err == nil && n.kinds == intOrString {
		e = factory.NewCall(0, "dyn", e)
	}
	return e, err
}

// typedFormats are the formats of strings whose values are not strings in CEL.
var typedFormats = map[string]bool{"byte": true, "duration": true, "date": true, "date-time": true}

func plainLiteral(value any, n *node) (ast.Expr, error) {
	switch v := value.(type) {
	case bool:
		return constant(v), nil
	case string:
		return factory.NewLiteral(0, types.String(v)), nil
	case int64:
		if n.kinds == numbers {
			return factory.NewLiteral(0, types.Double(v)), nil
		}
		return factory.NewLiteral(0, types.Int(v)), nil
	case float64:
		return factory.NewLiteral(0, types.Double(v)), nil
	case []any:
		var elements []ast.Expr
		for _, element := range v {
			e, err := literal(element, n.element())
			if err != nil {
				return nil, err
			}
			elements = append(elements, e)
		}
		return factory.NewList(0, elements, nil), nil
	case map[string]any:
		return mapOf(v, n)
	default:
		return nil, errIrreducible
	}
}

// mapOf returns a map literal. CEL has no literal for an object of a schema.
func mapOf(value map[string]any, n *node) (ast.Expr, error) {
	if n.rest != mapped {
		return nil, errIrreducible
	}
	var entries []ast.EntryExpr
	for _, key := range sortedKeysOf(value) {
		e, err := literal(value[key], n.additional)
		if err != nil {
			return nil, err
		}
		entries = append(entries, factory.NewMapEntry(0, factory.NewLiteral(0, types.String(key)), e, false))
	}
	return factory.NewMap(0, entries), nil
}

// filled returns a default after its own defaults were filled in.
func filled(n *node) (any, error) {
	value, err := decode([]byte(n.fallback))
	if err != nil {
		return nil, fmt.Errorf("reading a default: %w", err)
	}
	j, err := newChecker(wrapped(n), false)
	if err != nil {
		return nil, err
	}
	doc := map[string]any{"value": value}
	j.fill(doc)
	return doc["value"], nil
}

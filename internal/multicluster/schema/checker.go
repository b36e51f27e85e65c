package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// checker processes documents as an API server with a schema does. It uses the defaulting,
// pruning and validation of Kubernetes.
type checker struct {
	structural *structuralschema.Structural
	validator  validation.SchemaCreateValidator
	rules      *cel.Validator
	// resource is true if the documents are whole resources.
	resource bool
	// spent is the cost of all rule evaluations so far, in the units of an API server.
	spent int64
}

func newChecker(props *apiextensionsv1.JSONSchemaProps, resource bool) (*checker, error) {
	internal, s, err := libraryForms(props)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	return &checker{structural: s, validator: validator, rules: cel.NewValidator(s, resource, celconfig.PerCallLimit), resource: resource}, nil
}

// admit returns the document that results from a creation: with defaults, pruned and then
// validated. It does not change its argument.
func (j *checker) admit(doc map[string]any) (map[string]any, error) {
	admitted := runtime.DeepCopyJSON(doc)
	j.fill(admitted)
	pruning.Prune(admitted, j.structural, j.resource)
	return admitted, j.validate(admitted).ToAggregate()
}

func (j *checker) fill(doc map[string]any) {
	defaulting.Default(doc, j.structural)
	defaulting.PruneNonNullableNullsWithoutDefaults(doc, j.structural)
}

// refusal is why a document cannot be held unchanged, and at which paths.
type refusal struct {
	error
	paths []string
}

// holds returns why a document cannot be held unchanged: it is refused, or a part of it is pruned
// or changed. Additional defaults do not count. It returns nil if the document can be held.
func (j *checker) holds(doc map[string]any) error {
	if r := j.refuses(doc); r != nil {
		return r.error
	}
	return nil
}

func (j *checker) refuses(doc map[string]any) *refusal {
	held := runtime.DeepCopyJSON(doc)
	j.fill(held)
	if at := changed("", doc, held); at != "" {
		return &refusal{fmt.Errorf("%s is changed by a default", at), []string{at}}
	}
	paths := pruning.PruneWithOptions(held, j.structural, j.resource, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	var pruned error
	if len(paths) > 0 {
		pruned = fmt.Errorf("%s is pruned", strings.Join(paths, ", "))
	}
	errs := j.validate(held)
	for _, err := range errs {
		paths = append(paths, err.Field)
	}
	if len(paths) == 0 {
		return nil
	}
	return &refusal{errors.Join(pruned, errs.ToAggregate()), paths}
}

func (j *checker) validate(doc map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, doc, j.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, j.structural, doc)...)
	errs = append(errs, objectmeta.Validate(nil, doc, j.structural, j.resource)...)
	// As in the API server, rules run only if the schema is satisfied.
	if len(errs) == 0 && j.rules != nil {
		broken, left := j.rules.Validate(context.Background(), nil, j.structural, doc, nil, celconfig.RuntimeCELCostBudget)
		j.spent += celconfig.RuntimeCELCostBudget - max(left, 0)
		errs = append(errs, broken...)
	}
	return errs
}

// changed returns the path of a value that another document does not have unchanged. It is empty
// if the other document has all values.
func changed(path string, was, is any) string {
	switch was := was.(type) {
	case map[string]any:
		other, ok := is.(map[string]any)
		if !ok {
			return orRoot(path)
		}
		for key, v := range was {
			o, found := other[key]
			if !found {
				return path + "." + key
			}
			if at := changed(path+"."+key, v, o); at != "" {
				return at
			}
		}
		return ""
	case []any:
		other, ok := is.([]any)
		if !ok || len(other) != len(was) {
			return orRoot(path)
		}
		for i := range was {
			if at := changed(fmt.Sprintf("%s[%d]", path, i), was[i], other[i]); at != "" {
				return at
			}
		}
		return ""
	default:
		if was != is {
			return orRoot(path)
		}
		return ""
	}
}

func orRoot(path string) string {
	if path == "" {
		return "."
	}
	return path
}

// wrapped returns the schema of an object with one value, so that code for objects can check any
// value.
func wrapped(n *node) *apiextensionsv1.JSONSchemaProps {
	return &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"value": *write(n)}}
}

// accepts reports whether a default, as JSON, is valid for a node.
func accepts(n *node, fallback string) bool {
	if fallback == "" {
		return true
	}
	value, err := decode([]byte(fallback))
	if err != nil {
		return false
	}
	j, err := newChecker(wrapped(n), false)
	if err != nil {
		return false
	}
	return j.holds(map[string]any{"value": value}) == nil
}

// invalidRule is the parts of a rule that cannot be evaluated.
type invalidRule struct{ rule, message, path bool }

// compileRules returns the rules at a node that cannot be evaluated there. For example, a rule
// may use a property that was dropped, or a fraction where the node allows only integers.
func compileRules(n *node, resource bool) ([]invalidRule, error) {
	if len(n.rules) == 0 {
		return nil, nil
	}
	props := write(n)
	_, s, err := libraryForms(props)
	if err != nil {
		return nil, err
	}
	resource = resource || n.embedded
	results, err := cel.Compile(s, model.SchemaDeclType(s, resource), celconfig.PerCallLimit,
		environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()), cel.StoredExpressionsEnvLoader())
	if err != nil {
		return nil, fmt.Errorf("compiling the rules: %w", err)
	}
	all := make([]invalidRule, len(n.rules))
	for i := range results {
		all[i] = invalidRule{rule: results[i].Error != nil, message: results[i].MessageExpressionError != nil}
		if at := props.XValidations[i].FieldPath; at != "" {
			_, _, err := cel.ValidFieldPath(at, s)
			all[i].path = err != nil
		}
	}
	return all, nil
}

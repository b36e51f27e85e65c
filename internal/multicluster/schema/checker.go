package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
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

// checker treats documents as an API server with a schema does: Kubernetes' own
// defaulting, pruning and validation.
type checker struct {
	structural *structuralschema.Structural
	validator  validation.SchemaCreateValidator
	rules      *cel.Validator
	// resource is set when the documents are whole resources.
	resource bool
	// spent is what the evaluation of rules has cost so far, as an API server counts it.
	spent int64
}

func newChecker(props *apiextensionsv1.JSONSchemaProps, resource bool) (*checker, error) {
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil); err != nil {
		return nil, fmt.Errorf("converting the schema: %w", err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	return &checker{structural: s, validator: validator, rules: cel.NewValidator(s, resource, celconfig.PerCallLimit), resource: resource}, nil
}

// admit is what becomes of a document that is created: defaulted, pruned and then
// validated. The document given is not changed.
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

// refusal says why a document cannot be held as it is, and where.
type refusal struct {
	error
	paths []string
}

// holds says why a document cannot be held as it is: it is refused, or something of
// it is pruned or changed. What is filled in besides does not matter.
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

// follows says why a document that is held cannot take the place of another one.
func (j *checker) follows(old, doc map[string]any) error {
	old, doc = runtime.DeepCopyJSON(old), runtime.DeepCopyJSON(doc)
	j.fill(old)
	j.fill(doc)
	if j.rules == nil {
		return nil
	}
	broken, _ := j.rules.Validate(context.Background(), nil, j.structural, doc, old, celconfig.RuntimeCELCostBudget)
	return broken.ToAggregate()
}

func (j *checker) validate(doc map[string]any) field.ErrorList {
	errs := validation.ValidateCustomResource(nil, doc, j.validator)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, j.structural, doc)...)
	errs = append(errs, objectmeta.Validate(nil, doc, j.structural, j.resource)...)
	// As in the API server: rules assume what the schema says.
	if len(errs) == 0 && j.rules != nil {
		broken, left := j.rules.Validate(context.Background(), nil, j.structural, doc, nil, celconfig.RuntimeCELCostBudget)
		j.spent += celconfig.RuntimeCELCostBudget - max(left, 0)
		errs = append(errs, broken...)
	}
	return errs
}

// changed finds a path of a document that another does not have as it is; "" if it
// has all.
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

// wrapped is the schema of an object with one value, so that what judges objects can
// checker any value.
func wrapped(n *node) *apiextensionsv1.JSONSchemaProps {
	return &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"value": *write(n)}}
}

// accepts says whether a default, as JSON, is valid for a node.
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

// unfit says what of a rule cannot be evaluated.
type unfit struct{ rule, message, path bool }

// compileRules says which rules at a node cannot be evaluated there: one may speak of a
// property that is no more, or of a fraction where there are integers only.
func compileRules(n *node, resource bool) ([]unfit, error) {
	if len(n.rules) == 0 {
		return nil, nil
	}
	props := write(n)
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil); err != nil {
		return nil, fmt.Errorf("converting the schema: %w", err)
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil {
		return nil, fmt.Errorf("reading the schema: %w", err)
	}
	resource = resource || n.embedded
	results, err := cel.Compile(s, model.SchemaDeclType(s, resource), celconfig.PerCallLimit,
		environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()), cel.StoredExpressionsEnvLoader())
	if err != nil {
		return nil, fmt.Errorf("compiling the rules: %w", err)
	}
	all := make([]unfit, len(n.rules))
	for i := range results {
		all[i] = unfit{rule: results[i].Error != nil, message: results[i].MessageExpressionError != nil}
		if at := props.XValidations[i].FieldPath; at != "" {
			_, _, err := cel.ValidFieldPath(at, s)
			all[i].path = err != nil
		}
	}
	return all, nil
}

package plan

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// storedKey is the key of the question whether any object is stored.
const storedKey = "stored"

// fitKey returns the key of the question whether every stored object fits a spec.
func fitKey(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (string, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return "", fmt.Errorf("writing a schema: %w", err)
	}
	sum := sha256.Sum256(data)
	return "fit/" + spec.GroupVersion.Version + "/" + hex.EncodeToString(sum[:]), nil
}

// Answer answers questions from the stored objects. objects must contain those of all namespaces,
// as the server returns them in the storage version. An object fits a spec if it is valid under
// its schema and rules, and pruning would remove nothing. Answers do not quote the content of
// objects. If Answer returns an error, or objects yields one, the questions are not answered.
func Answer(ctx context.Context, questions []Question, objects iter.Seq2[*unstructured.Unstructured, error]) (Answers, error) {
	answers := Answers{}
	open := map[string]*fitter{}
	for _, q := range questions {
		answers[q.Key] = nil
		if q.Spec == nil {
			open[q.Key] = nil
			continue
		}
		f, err := newFitter(q.Spec)
		if err != nil {
			return nil, err
		}
		open[q.Key] = f
	}
	for object, err := range objects {
		if err != nil {
			return nil, fmt.Errorf("reading the stored objects: %w", err)
		}
		for key, f := range open {
			obstacle := isStored(object)
			if f != nil {
				obstacle = f.check(ctx, object)
			}
			if obstacle != nil {
				answers[key] = obstacle
				delete(open, key)
			}
		}
		if len(open) == 0 {
			break
		}
	}
	return answers, nil
}

func isStored(object *unstructured.Unstructured) *apiresourcev1alpha1.Obstacle {
	return &apiresourcev1alpha1.Obstacle{Path: ".", Reason: objectName(object) + " is stored"}
}

func objectName(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return fmt.Sprintf("the object %q", object.GetName())
	}
	return fmt.Sprintf("the object %q in namespace %q", object.GetName(), object.GetNamespace())
}

// fitter checks whether objects fit a spec.
type fitter struct {
	groupVersion schema.GroupVersion
	structural   *structuralschema.Structural
	validator    validation.SchemaValidator
	rules        *cel.Validator
}

func newFitter(spec *apiresourcev1alpha1.CommonAPIResourceSpec) (*fitter, error) {
	parsed, err := multischema.Parse(spec.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(parsed, &props, nil); err != nil {
		return nil, fmt.Errorf("reading a schema: %w", err)
	}
	structural, err := structuralschema.NewStructural(&props)
	if err != nil {
		return nil, fmt.Errorf("reading a structural schema: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&props)
	if err != nil {
		return nil, fmt.Errorf("making a validator of a schema: %w", err)
	}
	return &fitter{
		groupVersion: schema.GroupVersion{Group: spec.GroupVersion.Group, Version: spec.GroupVersion.Version},
		structural:   structural, validator: validator,
		rules: cel.NewValidator(structural, true, celconfig.PerCallLimit),
	}, nil
}

// check processes an object as the API server processes a written one.
func (f *fitter) check(ctx context.Context, object *unstructured.Unstructured) *apiresourcev1alpha1.Obstacle {
	content := object.DeepCopy()
	content.SetGroupVersionKind(f.groupVersion.WithKind(object.GetKind()))
	pruned := pruning.PruneWithOptions(content.Object, f.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if len(pruned) > 0 {
		return &apiresourcev1alpha1.Obstacle{Path: "." + strings.TrimPrefix(pruned[0], "."), Reason: objectName(object) + " has the field, which would be lost"}
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(content.Object, f.structural)
	defaulting.Default(content.Object, f.structural)
	problems := validation.ValidateCustomResource(nil, content.Object, f.validator)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, f.structural, content.Object)...)
	problems = append(problems, objectmeta.Validate(nil, content.Object, f.structural, false)...)
	if len(problems) == 0 && f.rules != nil {
		problems, _ = f.rules.Validate(ctx, nil, f.structural, content.Object, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(problems) == 0 {
		return nil
	}
	return invalidity(object, problems[0])
}

// invalidity returns an obstacle with the field and the kind of error, without the value.
func invalidity(object *unstructured.Unstructured, problem *field.Error) *apiresourcev1alpha1.Obstacle {
	path := "."
	if problem.Field != "" && problem.Field != "<nil>" {
		path = "." + problem.Field
	}
	return &apiresourcev1alpha1.Obstacle{Path: path, Reason: fmt.Sprintf("%s would not be valid there: %s", objectName(object), problem.Type)}
}

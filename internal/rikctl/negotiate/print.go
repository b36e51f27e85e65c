package negotiate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/describe"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	multischema "rik.dev/rik/internal/multicluster/schema"
	"rik.dev/rik/internal/rikctl/printer"
)

// schemaDepth is the number of levels of a schema that the text output shows; -o yaml shows all
// of them.
const schemaDepth = 2

// common lists the fields that every type has.
var common = []string{"apiVersion", "kind", "metadata"}

// printWanted writes the objects that publishing would create or update.
func printWanted(out io.Writer, p *plan.Plan) error {
	var objects []any
	for i := range p.Versions {
		if want := p.Versions[i].Want; want != nil {
			want = want.DeepCopy()
			want.APIVersion, want.Kind = apiresourcev1alpha1.SchemeGroupVersion.String(), "NegotiatedAPIResource"
			want.ManagedFields, want.Status = nil, apiresourcev1alpha1.NegotiatedAPIResourceStatus{}
			objects = append(objects, want)
		}
	}
	if crd := p.CRD.CRD; crd != nil && p.CRD.Action != plan.CRDDelete {
		crd = crd.DeepCopy()
		crd.APIVersion, crd.Kind = apiextensionsv1.SchemeGroupVersion.String(), "CustomResourceDefinition"
		crd.ManagedFields, crd.OwnerReferences, crd.Status = nil, nil, apiextensionsv1.CustomResourceDefinitionStatus{}
		objects = append(objects, crd)
	}
	for _, object := range objects {
		data, err := toYAML(object)
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return nil
}

// printNegotiation writes what publishing a resource would do.
func printNegotiation(out io.Writer, state *plan.State, p *plan.Plan) error {
	tabs := printers.GetNewTabWriter(out)
	w := describe.NewPrefixWriter(tabs)
	printer.Field(w, 0, "Resource", state.Resource.String())
	printer.Field(w, 0, "Publishing", crdStep(state, p))
	for i := range p.Versions {
		if err := writeNegotiatedVersion(w, &p.Versions[i]); err != nil {
			return err
		}
	}
	w.Write(describe.LEVEL_0, "\n")
	w.Flush()
	return nil
}

// crdStep describes what publishing would do with the CRD.
func crdStep(state *plan.State, p *plan.Plan) string {
	switch p.CRD.Action {
	case plan.CRDCreate:
		return fmt.Sprintf("creates CRD %s with %s", p.CRD.CRD.Name, versionsOf(p.CRD.CRD))
	case plan.CRDUpdate:
		return fmt.Sprintf("changes CRD %s to have %s", p.CRD.CRD.Name, versionsOf(p.CRD.CRD))
	case plan.CRDTrim:
		return fmt.Sprintf("removes versions from CRD %s in which no object is stored", p.CRD.CRD.Name)
	case plan.CRDDelete:
		return fmt.Sprintf("deletes CRD %s: no cluster offers the type, and no object is stored", p.CRD.CRD.Name)
	}
	if len(state.Native) > 0 {
		return "changes nothing: the kcp serves the type itself"
	}
	return "changes no CRD"
}

func versionsOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	var out []string
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Storage {
			out = append(out, v.Name+" (stored)")
			continue
		}
		out = append(out, v.Name)
	}
	return strings.Join(out, ", ")
}

func writeNegotiatedVersion(w describe.PrefixWriter, v *plan.Version) error {
	w.Write(describe.LEVEL_0, "Version %s:\n", v.Name)
	if v.Want == nil {
		printer.Field(w, 1, "Negotiated", "no: the kcp cannot serve the schemas of the clusters")
	} else {
		writeNegotiatedState(w, v)
		if err := writeSchema(w, &v.Want.Spec.CommonAPIResourceSpec); err != nil {
			return err
		}
	}
	var dropped, obstacles bool
	for i := range v.ImportResults {
		dropped = dropped || len(v.ImportResults[i].Status.Dropped) > 0
		obstacles = obstacles || !compatible(&v.ImportResults[i])
	}
	if dropped {
		w.Write(describe.LEVEL_1, "Left out:\n")
		for i := range v.ImportResults {
			writeObstacles(w, v.ImportResults[i].Status.Dropped)
		}
	}
	if obstacles {
		w.Write(describe.LEVEL_1, "Incompatible:\n")
		for i := range v.ImportResults {
			writeIncompatible(w, &v.ImportResults[i])
		}
	}
	return nil
}

func writeNegotiatedState(w describe.PrefixWriter, v *plan.Version) {
	var good []string
	for i := range v.ImportResults {
		if compatible(&v.ImportResults[i]) {
			good = append(good, v.ImportResults[i].Import.Spec.Location)
		}
	}
	printer.Field(w, 1, "Compatible", printer.OrNone(strings.Join(good, ", ")))
	for _, kind := range []string{apiresourcev1alpha1.ConditionEnforced, apiresourcev1alpha1.ConditionInUse} {
		if c := meta.FindStatusCondition(v.Want.Status.Conditions, kind); c != nil && c.Status == "True" {
			printer.Field(w, 1, kind, c.Message)
		}
	}
	submitted := meta.FindStatusCondition(v.Want.Status.Conditions, apiresourcev1alpha1.ConditionSubmitted)
	if submitted != nil && submitted.Status != "True" && submitted.Reason != apiresourcev1alpha1.ReasonNotEstablished {
		printer.Field(w, 1, "Not published", submitted.Message)
	}
	spec := &v.Want.Spec.CommonAPIResourceSpec
	printer.Field(w, 1, "Scope", string(spec.Scope))
	var sub []string
	for _, s := range spec.SubResources {
		sub = append(sub, s.Name)
	}
	printer.Field(w, 1, "Subresources", printer.OrNone(strings.Join(sub, ", ")))
}

func compatible(v *plan.ImportResult) bool {
	return meta.IsStatusConditionTrue(v.Status.Conditions, apiresourcev1alpha1.ConditionCompatible)
}

func writeIncompatible(w describe.PrefixWriter, v *plan.ImportResult) {
	if compatible(v) {
		return
	}
	w.Write(describe.LEVEL_2, "cluster %s:\n", printers.EscapeTerminal(v.Import.Spec.Location))
	if len(v.Status.Obstacles) > 0 {
		writeObstacles(w, v.Status.Obstacles)
		return
	}
	if c := meta.FindStatusCondition(v.Status.Conditions, apiresourcev1alpha1.ConditionCompatible); c != nil {
		w.Write(describe.LEVEL_3, "%s\n", printers.EscapeTerminal(c.Message))
	}
}

// writeObstacles writes the places where schemas differ, with the documents that show each
// difference. The text comes from clusters, which are not trusted, so it must not control the
// terminal.
func writeObstacles(w describe.PrefixWriter, obstacles []apiresourcev1alpha1.Obstacle) {
	for i := range obstacles {
		o := &obstacles[i]
		text := o.Path + ": " + o.Reason
		if len(o.Locations) > 0 {
			text += " (" + strings.Join(o.Locations, ", ") + ")"
		}
		w.Write(describe.LEVEL_3, "%s\n", printers.EscapeTerminal(text))
		if o.CounterExample != "" {
			w.Write(describe.LEVEL_4, "for example %s\n", printers.EscapeTerminal(o.CounterExample))
		}
	}
}

// writeSchema writes the fields of the first levels.
func writeSchema(w describe.PrefixWriter, spec *apiresourcev1alpha1.CommonAPIResourceSpec) error {
	props, err := multischema.Parse(spec.OpenAPIV3Schema)
	if err != nil {
		return err
	}
	for _, same := range common {
		delete(props.Properties, same)
	}
	w.Write(describe.LEVEL_1, "Schema, %d fields:\n", countFields(props))
	writeFields(w, props, "", schemaDepth)
	return nil
}

func writeFields(w describe.PrefixWriter, props *apiextensionsv1.JSONSchemaProps, path string, depth int) {
	for _, name := range slices.Sorted(maps.Keys(props.Properties)) {
		p := props.Properties[name]
		at := path + "." + name
		w.Write(describe.LEVEL_2, "%s\t%s\n", printers.EscapeTerminal(at), fieldType(&p, slices.Contains(props.Required, name)))
		if depth > 1 {
			writeFields(w, &p, at, depth-1)
		}
	}
}

func fieldType(p *apiextensionsv1.JSONSchemaProps, required bool) string {
	kind := p.Type
	if p.XIntOrString {
		kind = "integer or string"
	}
	switch {
	case p.Type == "array" && p.Items != nil && p.Items.Schema != nil:
		kind = "array of " + fieldType(p.Items.Schema, false)
	case p.XPreserveUnknownFields != nil && *p.XPreserveUnknownFields && len(p.Properties) == 0:
		kind = "anything"
	}
	if required {
		kind += ", required"
	}
	return kind
}

func countFields(p *apiextensionsv1.JSONSchemaProps) int {
	n := len(p.Properties)
	for _, child := range p.Properties {
		n += countFields(&child)
	}
	if p.Items != nil && p.Items.Schema != nil {
		n += countFields(p.Items.Schema)
	}
	if p.AdditionalProperties != nil && p.AdditionalProperties.Schema != nil {
		n += countFields(p.AdditionalProperties.Schema)
	}
	return n
}

package multicluster

import (
	"encoding/json"
	"fmt"
	"io"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/schema"
)

// report is the result of compat, and the output of -o json.
type report struct {
	Name       string          `json:"name"`
	Old        string          `json:"old"`
	New        string          `json:"new"`
	Compatible *bool           `json:"compatible,omitempty"`
	Versions   []versionReport `json:"versions"`
	// LCD is the CRD that both can hold.
	LCD map[string]any `json:"lcd,omitempty"`

	conversionDiffers bool
}

// verdict is the result for one version.
type verdict string

const (
	verdictCompatible   verdict = "Compatible"
	verdictIncompatible verdict = "Incompatible"
	// verdictRemoved: OLD serves it or may store objects in it, and NEW does not.
	verdictRemoved verdict = "Removed"
	// verdictAdded: only NEW serves it.
	verdictAdded verdict = "Added"
	// verdictAgreed: both can hold what the LCD contains.
	verdictAgreed verdict = "Agreed"
)

type versionReport struct {
	Name      string           `json:"name"`
	Verdict   verdict          `json:"verdict"`
	Reason    string           `json:"reason,omitempty"`
	Obstacles []obstacleReport `json:"obstacles,omitempty"`
	LeftOut   []obstacleReport `json:"leftOut,omitempty"`
}

type obstacleReport struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	// Example is an object that one accepts, and another refuses or changes.
	Example json.RawMessage `json:"example,omitempty"`
}

func obstacleReports(obstacles []apiresourcev1alpha1.Obstacle) []obstacleReport {
	var reports []obstacleReport
	for _, o := range obstacles {
		r := obstacleReport{Path: o.Path, Reason: o.Reason}
		if o.CounterExample != "" {
			r.Example = json.RawMessage(o.CounterExample)
		}
		reports = append(reports, r)
	}
	return reports
}

// compare sets what NEW cannot hold of OLD.
func (r *report) compare(before, after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer) {
	for i := range before.Spec.Versions {
		v := &before.Spec.Versions[i]
		existing, served := offers[v.Name]
		offered, stays := others[v.Name]
		switch {
		case served && !stays:
			r.add(versionReport{Name: v.Name, Verdict: verdictRemoved, Reason: "OLD serves it, and NEW does not"})
		case served:
			found := obstacleReports(schema.Compatible(existing, offered))
			said := versionReport{Name: v.Name, Verdict: verdictCompatible, Obstacles: found}
			if len(found) > 0 {
				said.Verdict = verdictIncompatible
			}
			r.add(said)
		case v.Storage && !has(after, v.Name):
			r.add(versionReport{Name: v.Name, Verdict: verdictRemoved, Reason: "OLD stores objects in it, and NEW does not have it"})
		}
	}
	r.addNew(after, offers, others)
	compatible := true
	for _, v := range r.Versions {
		compatible = compatible && v.Verdict != verdictIncompatible && v.Verdict != verdictRemoved
	}
	r.Compatible = &compatible
}

func (r *report) add(v versionReport) { r.Versions = append(r.Versions, v) }

func (r *report) addNew(after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer) {
	for i := range after.Spec.Versions {
		name := after.Spec.Versions[i].Name
		_, was := offers[name]
		if _, is := others[name]; is && !was {
			r.add(versionReport{Name: name, Verdict: verdictAdded, Reason: "only NEW serves it"})
		}
	}
}

func has(crd *apiextensionsv1.CustomResourceDefinition, version string) bool {
	return versionNamed(crd, version) != nil
}

func versionNamed(crd *apiextensionsv1.CustomResourceDefinition, name string) *apiextensionsv1.CustomResourceDefinitionVersion {
	for i := range crd.Spec.Versions {
		if crd.Spec.Versions[i].Name == name {
			return &crd.Spec.Versions[i]
		}
	}
	return nil
}

// err returns the result as an error with an exit code.
func (r *report) err(lcd bool) error {
	switch {
	case lcd && r.LCD == nil:
		return &ExitError{Code: 1, Err: errNoDenominator}
	case !lcd && !*r.Compatible:
		return &ExitError{Code: 1, Err: errIncompatible}
	default:
		return nil
	}
}

// write prints the report as text or JSON.
func (c *compat) write(r *report) error {
	if c.format == "json" {
		encoder := json.NewEncoder(c.out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	if !c.lcd {
		return r.report(c.out)
	}
	if err := r.report(c.complaints); err != nil || r.LCD == nil {
		return err
	}
	raw, err := yaml.Marshal(r.LCD)
	if err != nil {
		return err
	}
	_, err = c.out.Write(raw)
	return err
}

// report prints the report as text.
func (r *report) report(w io.Writer) error {
	var failed error
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(w, format, args...); err != nil && failed == nil {
			failed = err
		}
	}
	for _, v := range r.Versions {
		switch v.Verdict {
		case verdictAgreed:
			for _, o := range v.LeftOut {
				say("%s %s: left out %s: %s\n", r.Name, v.Name, o.Path, o.Reason)
			}
			continue
		case verdictCompatible:
			say("%s %s: compatible\n", r.Name, v.Name)
		case verdictIncompatible:
			say("%s %s: incompatible\n", r.Name, v.Name)
		case verdictRemoved:
			say("%s %s: removed: %s\n", r.Name, v.Name, v.Reason)
		case verdictAdded:
			say("%s %s: added: %s\n", r.Name, v.Name, v.Reason)
		}
		for _, o := range v.Obstacles {
			say("  %s: %s\n", o.Path, o.Reason)
			if o.Example != nil {
				say("    such as %s\n", o.Example)
			}
		}
	}
	if r.conversionDiffers {
		say("%s: left out .spec.conversion: OLD and NEW convert between versions in different ways\n", r.Name)
	}
	return failed
}

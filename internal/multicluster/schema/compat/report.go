// Package compat compares two CRDs of one type: can NEW hold everything that OLD accepts, and what
// is the largest CRD that both can hold? It applies [schema.Compatible] and [schema.Meet] to every
// version, and adds what concerns the CRD as a whole: its versions, storage and conversion.
//
// The main type is [Report]. A [Comparison] reads the CRDs from files and writes the report.
package compat

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/schema"
)

// Input is a CRD to compare, and the file from which it was read.
type Input struct {
	File string
	CRD  *apiextensionsv1.CustomResourceDefinition
}

// Report is the result for all versions of a type. Its JSON is the output of the command compat.
type Report struct {
	Name string `json:"name"`
	Old  string `json:"old"`
	New  string `json:"new"`
	// Compatible is the result of Compare. Meet does not set it.
	Compatible *bool     `json:"compatible,omitempty"`
	Versions   []Version `json:"versions"`
	// LCD is the CRD that both can hold, the result of Meet. It is nil if there is no such CRD.
	LCD map[string]any `json:"lcd,omitempty"`

	conversionDiffers bool
}

// Verdict is the result for one version.
type Verdict string

// The results.
const (
	Compatible   Verdict = "Compatible"
	Incompatible Verdict = "Incompatible"
	// Removed: OLD serves it or may store objects in it, and NEW does not.
	Removed Verdict = "Removed"
	// Added: only NEW serves it.
	Added Verdict = "Added"
	// Agreed: both can hold what the LCD contains.
	Agreed Verdict = "Agreed"
)

// Version is the result for one version, with what makes it incompatible and what the LCD leaves
// out.
type Version struct {
	Name      string     `json:"name"`
	Verdict   Verdict    `json:"verdict"`
	Reason    string     `json:"reason,omitempty"`
	Obstacles []Obstacle `json:"obstacles,omitempty"`
	LeftOut   []Obstacle `json:"leftOut,omitempty"`
}

// Obstacle is a place in a schema that one CRD cannot hold.
type Obstacle struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	// Example is an object that one accepts, and another refuses or changes.
	Example json.RawMessage `json:"example,omitempty"`
}

func obstaclesOf(obstacles []apiresourcev1alpha1.Obstacle) []Obstacle {
	var reports []Obstacle
	for _, o := range obstacles {
		r := Obstacle{Path: o.Path, Reason: o.Reason}
		if o.CounterExample != "" {
			r.Example = json.RawMessage(o.CounterExample)
		}
		reports = append(reports, r)
	}
	return reports
}

// Compare returns whether NEW can hold everything that OLD accepts. It returns an error if they
// cannot be compared.
func Compare(before, after Input) (*Report, error) {
	return with(before, after, (*Report).compare)
}

// Meet returns the largest CRD that both can hold. It returns an error if they cannot be compared.
func Meet(before, after Input) (*Report, error) {
	return with(before, after, (*Report).meet)
}

func with(before, after Input, fill func(r *Report, before, after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer)) (*Report, error) {
	if err := sameType(before.CRD, after.CRD); err != nil {
		return nil, err
	}
	offers, errBefore := offersOf(before, "OLD")
	others, errAfter := offersOf(after, "NEW")
	if err := errors.Join(errBefore, errAfter); err != nil {
		return nil, err
	}
	r := &Report{Name: before.CRD.Name, Old: before.File, New: after.File}
	fill(r, before.CRD, after.CRD, offers, others)
	return r, nil
}

// compare sets what NEW cannot hold of OLD.
func (r *Report) compare(before, after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer) {
	for i := range before.Spec.Versions {
		v := &before.Spec.Versions[i]
		existing, served := offers[v.Name]
		offered, stays := others[v.Name]
		switch {
		case served && !stays:
			r.add(Version{Name: v.Name, Verdict: Removed, Reason: "OLD serves it, and NEW does not"})
		case served:
			found := obstaclesOf(schema.Compatible(existing, offered))
			said := Version{Name: v.Name, Verdict: Compatible, Obstacles: found}
			if len(found) > 0 {
				said.Verdict = Incompatible
			}
			r.add(said)
		case v.Storage && !has(after, v.Name):
			r.add(Version{Name: v.Name, Verdict: Removed, Reason: "OLD stores objects in it, and NEW does not have it"})
		}
	}
	r.addNew(after, offers, others)
	compatible := true
	for _, v := range r.Versions {
		compatible = compatible && v.Verdict != Incompatible && v.Verdict != Removed
	}
	r.Compatible = &compatible
}

func (r *Report) add(v Version) { r.Versions = append(r.Versions, v) }

func (r *Report) addNew(after *apiextensionsv1.CustomResourceDefinition, offers, others map[string]schema.Offer) {
	for i := range after.Spec.Versions {
		name := after.Spec.Versions[i].Name
		_, was := offers[name]
		if _, is := others[name]; is && !was {
			r.add(Version{Name: name, Verdict: Added, Reason: "only NEW serves it"})
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

// WriteText writes the report as text. It does not write the LCD.
func (r *Report) WriteText(w io.Writer) error {
	var failed error
	say := func(format string, args ...any) {
		if _, err := fmt.Fprintf(w, format, args...); err != nil && failed == nil {
			failed = err
		}
	}
	for _, v := range r.Versions {
		switch v.Verdict {
		case Agreed:
			for _, o := range v.LeftOut {
				say("%s %s: left out %s: %s\n", r.Name, v.Name, o.Path, o.Reason)
			}
			continue
		case Compatible:
			say("%s %s: compatible\n", r.Name, v.Name)
		case Incompatible:
			say("%s %s: incompatible\n", r.Name, v.Name)
		case Removed:
			say("%s %s: removed: %s\n", r.Name, v.Name, v.Reason)
		case Added:
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

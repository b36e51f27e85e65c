package plan

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestBreaks tests the questions before a change of a CRD.
func TestBreaks(t *testing.T) {
	t.Parallel()
	of := func(properties string) *apiextensionsv1.CustomResourceDefinition {
		return byHand(t, widget("", properties))
	}
	with := func(crd *apiextensionsv1.CustomResourceDefinition, change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
		change(crd)
		return crd
	}
	addBeta := func(crd *apiextensionsv1.CustomResourceDefinition) {
		beta := *crd.Spec.Versions[0].DeepCopy()
		beta.Name, beta.Storage = "v1beta1", false
		crd.Spec.Versions = append(crd.Spec.Versions, beta)
	}
	for name, tc := range map[string]struct {
		before, next *apiextensionsv1.CustomResourceDefinition
		want         string
	}{
		"nothing changes":                   {of(aAndB), of(aAndB), ""},
		"it widens":                         {of(onlyA), of(aAndB), ""},
		"a field goes":                      {of(aAndB), of(onlyA), "fit/v1"},
		"a field changes its type":          {of(onlyA), of(aIsInt), "fit/v1"},
		"a version comes":                   {of(onlyA), with(of(onlyA), addBeta), "fit/v1beta1"},
		"a version that is not stored goes": {with(of(onlyA), addBeta), of(onlyA), ""},
		"a version is no longer stored": {
			with(of(onlyA), func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Status.StoredVersions = []string{"v1beta1", "v1"}
			}), of(onlyA), "stored"},
		"it is deleted": {of(onlyA), nil, "stored"},
		"it is deleted, and was never served": {with(of(onlyA), func(crd *apiextensionsv1.CustomResourceDefinition) {
			crd.Status.Conditions = nil
		}), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			questions, err := Harm(tc.before, tc.next)
			if err != nil {
				t.Fatal(err)
			}
			var keys []string
			for _, q := range questions {
				key, hash := q.Key, strings.LastIndex(q.Key, "/")
				if hash >= 0 {
					key = key[:hash]
				}
				keys = append(keys, key)
			}
			if got := strings.Join(keys, " "); got != tc.want {
				t.Errorf("Harm() asks %q, want %q", got, tc.want)
			}
		})
	}
}

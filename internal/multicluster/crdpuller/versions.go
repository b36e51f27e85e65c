package crdpuller

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	multischema "rik.dev/rik/internal/multicluster/schema"
)

// maxReason limits the text about one version, because schemas and rules can have any length.
const maxReason = 1000

// maxAnswers limits how many comparisons of versions are cached.
const maxAnswers = 1000

// addVersions adds other versions of the cluster's CRD to a CRD with the preferred version. The
// objects of these versions may differ from it only by optional fields. Other versions would need
// conversion.
func (p *Puller) addVersions(crd, found *apiextensionsv1.CustomResourceDefinition) {
	preferred := crd.Spec.Versions[0]
	var left []string
	for i := range found.Spec.Versions {
		theirs := found.Spec.Versions[i].DeepCopy()
		if !theirs.Served || theirs.Name == preferred.Name || !isName(schema.GroupVersion{Group: crd.Spec.Group, Version: theirs.Name}, crd.Spec.Names.Plural) {
			continue
		}
		if why := p.conflict(&preferred, theirs); why != "" {
			left = append(left, fmt.Sprintf("%s: %.*s", theirs.Name, maxReason, why))
			continue
		}
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: theirs.Name, Served: true, Schema: theirs.Schema, Subresources: theirs.Subresources,
			AdditionalPrinterColumns: theirs.AdditionalPrinterColumns, SelectableFields: theirs.SelectableFields,
			Deprecated: theirs.Deprecated, DeprecationWarning: theirs.DeprecationWarning,
		})
	}
	if len(left) > 0 {
		metav1.SetMetaDataAnnotation(&crd.ObjectMeta, apiresourcev1alpha1.VersionsAnnotation, strings.Join(left, "\n"))
	}
}

// conflict returns why a version cannot be served next to the preferred one without conversion. It
// caches the results, because comparing large schemas takes long.
func (p *Puller) conflict(preferred, other *apiextensionsv1.CustomResourceDefinitionVersion) string {
	var offers [2]multischema.Offer
	sum := sha256.New()
	for i, v := range []*apiextensionsv1.CustomResourceDefinitionVersion{preferred, other} {
		if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
			return v.Name + " has no schema"
		}
		if err := checkStructural(v.Schema.OpenAPIV3Schema); err != nil {
			return fmt.Sprintf("%s: %v", v.Name, err)
		}
		raw, err := json.Marshal(v.Schema.OpenAPIV3Schema)
		if err != nil {
			return fmt.Sprintf("writing the schema of %s: %v", v.Name, err)
		}
		offers[i] = multischema.Offer{Location: v.Name, Spec: apiresourcev1alpha1.CommonAPIResourceSpec{OpenAPIV3Schema: runtime.RawExtension{Raw: raw}}}
		// writing to a hash cannot fail
		_, _ = fmt.Fprintf(sum, "%s %d %s\n", v.Name, len(raw), raw)
	}
	key := [sha256.Size]byte(sum.Sum(nil))
	p.mu.Lock()
	why, known := p.answers[key]
	p.mu.Unlock()
	if known {
		return why
	}
	why = multischema.StorableAs(offers[0], offers[1])
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answers) >= maxAnswers {
		clear(p.answers)
	}
	p.answers[key] = why
	return why
}

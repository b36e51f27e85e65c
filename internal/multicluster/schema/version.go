package schema

import (
	"fmt"
	"strings"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// noProperty is the prefix of the reason for a property that some offer does not have.
const noProperty = "there is no such property in "

// StorableAs returns why objects of one version of a type cannot be stored in another version without
// conversion. It is empty if the stored version has only additional optional fields. The
// Locations of the offers are the names of their versions.
func StorableAs(stored, other Offer) string {
	other.Spec.GroupVersion = stored.Spec.GroupVersion
	read, unreadable := readOffers([]Offer{stored, other})
	if unreadable != nil {
		return said(unreadable[0])
	}
	if found := compare(read[1], read[0]); len(found) > 0 {
		return said(found[0])
	}
	agreement, why := (&meeting{}).agree(read)
	if agreement == nil {
		return said(why[0])
	}
	for _, o := range agreement.Dropped {
		optional := o.Reason == noProperty+other.Location || strings.HasPrefix(o.Reason, fallbackDiffers)
		if !optional && !strings.HasPrefix(o.Path, subResourcePath) {
			return said(o)
		}
	}
	return ""
}

func said(o apiresourcev1alpha1.Obstacle) string { return fmt.Sprintf("%s: %s", o.Path, o.Reason) }

package restv0

import (
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry/tenant"
)

// maxTenantID is the maximum length of a tenant's ID. The published clients use UUIDs, which
// are shorter.
const maxTenantID = 253

// tenantBody combines both published forms of a tenant: {id, name, value} in the code and
// TenantDefinition {name, verb, resource} in the document.
type tenantBody struct {
	ID       *string `json:"id,omitempty"`
	Name     string  `json:"name"`
	Value    *string `json:"value,omitempty"`
	Verb     *string `json:"verb,omitempty"`
	Resource *string `json:"resource,omitempty"`
}

func (b *tenantBody) isDefinition() bool { return b.Verb != nil || b.Resource != nil }

func (b *tenantBody) validate() error {
	switch {
	case b.Name == "":
		return invalidField("name", "is required")
	case b.isDefinition() && (b.Verb == nil || *b.Verb == ""):
		return invalidField("verb", "is required together with resource")
	case b.isDefinition() && (b.Resource == nil || *b.Resource == ""):
		return invalidField("resource", "is required together with verb")
	case b.ID != nil && len(*b.ID) > maxTenantID:
		return invalidField("id", fmt.Sprintf("must be at most %d bytes", maxTenantID))
	}
	return nil
}

// object returns the tenant that the body describes. A definition contains the permissions of
// the user with the tenant's name in its namespace.
func (b *tenantBody) object() *rik.Tenant {
	t := &rik.Tenant{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}
	if b.ID != nil && *b.ID != "" {
		t.Annotations = map[string]string{rikv1alpha1.AnnotationLegacyID: *b.ID}
	}
	if b.Value != nil {
		t.Spec.Value = *b.Value
	}
	if b.isDefinition() {
		t.Spec.Users = []rik.TenantUser{{Name: b.Name, Verbs: []string{*b.Verb}, Resources: []string{plural(*b.Resource)}}}
	}
	return t
}

// plural accepts both forms: the published example is "workload", and roles use "workloads".
func plural(name string) string {
	for _, r := range []resource{workloads, instances} {
		if name == r.singular {
			return r.Resource
		}
	}
	return name
}

// tenantPaths maps the paths of a tenant's fields to the fields of a body.
var tenantPaths = []string{
	"spec.users[0].resources[0]", "resource", "spec.users[0].verbs[0]", "verb", "spec.users[0].name", "name",
	"metadata.name", "name", "spec.value", "value",
}

func tenantID(t *rik.Tenant) string {
	if id := tenant.LegacyID(t); id != "" {
		return id
	}
	return string(t.UID)
}

func (c *call) listTenants() (answer, error) {
	if err := c.must("list", tenants, "", "", tenants.Resource); err != nil {
		return answer{}, err
	}
	items, err := list(c, c.Stores.Tenants.Tenant, tenants, func(l *rik.TenantList) []rik.Tenant { return l.Items })
	if err != nil {
		return answer{}, err
	}
	out := make([]tenantBody, len(items))
	for i := range items {
		t := &items[i]
		out[i] = tenantBody{ID: pointer(tenantID(t)), Name: t.Name, Value: &t.Spec.Value}
		if len(t.Spec.Users) == 1 && len(t.Spec.Users[0].Verbs) == 1 && len(t.Spec.Users[0].Resources) == 1 {
			out[i].Verb, out[i].Resource = &t.Spec.Users[0].Verbs[0], &t.Spec.Users[0].Resources[0]
		}
	}
	return answer{http.StatusOK, out}, nil
}

// createTenant creates a tenant. The controller then creates its namespace and roles. It
// responds with the body and the new ID.
func (c *call) createTenant() (answer, error) {
	var body tenantBody
	if err := c.decode(&body); err != nil {
		return answer{}, err
	}
	if err := body.validate(); err != nil {
		return answer{}, err
	}
	if err := c.must("create", tenants, "", "", tenants.Resource); err != nil {
		return answer{}, err
	}
	object := body.object()
	// IDs are not names of objects, so the datastore does not ensure that they are unique.
	c.tenantIDs.Lock()
	defer c.tenantIDs.Unlock()
	if id := tenant.LegacyID(object); id != "" {
		if _, err := c.findTenant(id); !errors.Is(err, errGone) {
			if err == nil {
				err = conflict(fmt.Sprintf("Id already used by a tenant with id %q", id))
			}
			return answer{}, err
		}
	}
	audit.AddAuditAnnotation(c.Context(), auditAnnotation, fmt.Sprintf("tenants %q", body.Name))
	made, err := create(c.Context(), c, c.Stores.Tenants.Tenant, tenants, object)
	if apierrors.IsAlreadyExists(err) {
		return answer{}, conflict(fmt.Sprintf("Name already used by tenant %q", body.Name))
	}
	if err != nil {
		return answer{}, translated(err, tenantPaths...)
	}
	body.ID = pointer(tenantID(made))
	return answer{http.StatusOK, body}, nil
}

// findTenant finds a tenant by UID, or otherwise by the ID that a client set.
func (c *call) findTenant(id string) (*rik.Tenant, error) {
	s := c.Stores.Tenants.Tenant.Store
	found, err := find[*rik.Tenant](c.Context(), s, id)
	if !errors.Is(err, errGone) {
		return found, err
	}
	given, err := findBy[*rik.Tenant](c.Context(), s, tenant.ByLegacyID, id)
	switch {
	case err != nil:
		return nil, err
	case len(given) == 0:
		return nil, errGone
	case len(given) > 1:
		// They were created through different servers at the same time, or by annotation.
		return nil, conflict(fmt.Sprintf("id %q belongs to %d tenants; delete them by name with rikctl or kubectl", id, len(given)))
	}
	return given[0], nil
}

func (c *call) deleteTenant() (answer, error) {
	id, err := c.readID()
	if err != nil {
		return answer{}, err
	}
	t, err := c.findTenant(id)
	if err == nil {
		err = c.remove(c.Stores.Tenants.Tenant, tenants, t, id)
	}
	if errors.Is(err, errGone) {
		err = notFound(fmt.Sprintf("Tenant id %s not found", id))
	}
	return answer{code: http.StatusNoContent}, err
}

package schema

import (
	"fmt"
	"math"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// valuesIn counts the values of a document.
func valuesIn(value any) int {
	n := 1
	switch value := value.(type) {
	case map[string]any:
		for _, v := range value {
			n += valuesIn(v)
		}
	case []any:
		for _, v := range value {
			n += valuesIn(v)
		}
	}
	return n
}

func listOf(most int64, item *props) props {
	return props{Type: "array", MaxItems: ptr(most), Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: item}}
}

// TestExamplesAreBounded tests that nested lists, whose items multiply, do not lead to large
// documents, even if the lists must be long.
func TestExamplesAreBounded(t *testing.T) {
	t.Parallel()
	for name, least := range map[string]*int64{"they may be long": nil, "they have to be long": ptr(int64(150))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			east, west := &props{Type: "string"}, &props{Type: "string", MaxLength: ptr(int64(3))}
			for range 8 {
				e, w := listOf(150, east), listOf(150, west)
				e.MinItems, w.MinItems = least, least
				east, west = &e, &w
			}
			a, b := mustRead(t, specSchema(t, "east", encode(east)))[0], mustRead(t, specSchema(t, "west", encode(west)))[0]
			s := newSampler(1)
			for range 50 {
				*s.left = maxValues
				if n := valuesIn(s.resource(a.root, b.root, nil)); n > 3*maxValues {
					t.Fatalf("an example has %d values, want at most some %d", n, maxValues)
				}
			}
			found := []apiresourcev1alpha1.Obstacle{{Path: ".spec"}, {Path: ".spec[*][*]"}}
			search(found, [][2]*offeredSchema{{a, b}, {b, a}})
		})
	}
}

// TestExamplesAreKept tests that the same schemas have the same examples, which are searched for
// only once.
func TestExamplesAreKept(t *testing.T) {
	t.Parallel()
	east, west := specSchema(t, "east", `{type: object, properties: {kept: {type: string}}}`), specSchema(t, "west", `{type: object, properties: {kept: {type: integer}}}`)
	first := Compatible(east, west)
	if len(first) != 1 || first[0].CounterExample == "" {
		t.Fatalf("the obstacles are %+v", first)
	}
	all := mustRead(t, east, west)
	key := exampleKey(first, [][2]*offeredSchema{{all[0], all[1]}})
	if known, ok := exampleCache.Get(key); !ok || fmt.Sprint(known) != fmt.Sprint([]string{first[0].CounterExample}) {
		t.Errorf("kept is %v, want %s", known, first[0].CounterExample)
	}
	if again := Compatible(east, west); again[0].CounterExample != first[0].CounterExample {
		t.Errorf("the example is %s, and was %s", again[0].CounterExample, first[0].CounterExample)
	}
	if IsCompatible(east, west) || !IsCompatible(east, east) {
		t.Error("IsCompatible says something else than Compatible")
	}
}

// route returns a schema with the structure and size of an HTTPRoute of the Gateway API: nested
// lists of rules, matches, filters and backends, with patterns and rules.
func route(later bool, salt int) *props {
	name := props{Type: "string", MinLength: ptr(int64(1)), MaxLength: ptr(int64(253)), Pattern: `^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`}
	text := props{Type: "string", MinLength: ptr(int64(1)), MaxLength: ptr(int64(4096))}
	one := func(values ...string) props {
		p := props{Type: "string"}
		for _, v := range values {
			p.Enum = append(p.Enum, apiextensionsv1.JSON{Raw: []byte(`"` + v + `"`)})
		}
		return p
	}
	object := func(rules apiextensionsv1.ValidationRules, required []string, properties map[string]props) *props {
		return &props{Type: "object", Required: required, Properties: properties, XValidations: rules}
	}
	reference := func() map[string]props {
		return map[string]props{
			"group": {Type: "string", MaxLength: ptr(int64(253)), Default: &apiextensionsv1.JSON{Raw: []byte(`""`)}}, "kind": {Type: "string", MinLength: ptr(int64(1)), MaxLength: ptr(int64(63)), Pattern: `^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$`, Default: &apiextensionsv1.JSON{Raw: []byte(`"Service"`)}},
			"name": name, "namespace": name, "port": {Type: "integer", Format: "int32", Minimum: ptr(1.0), Maximum: ptr(65535.0)},
		}
	}
	needsPort := apiextensionsv1.ValidationRules{{Rule: `(size(self.group) == 0 && self.kind == 'Service') ? has(self.port) : true`, Message: "a Service needs a port"}}
	header := object(nil, []string{"name", "value"}, map[string]props{"name": {Type: "string", MinLength: ptr(int64(1)), MaxLength: ptr(int64(256)), Pattern: "^[A-Za-z0-9!#$%&'*+\\-.^_\\x60|~]+$"}, "value": text, "type": one("Exact", "RegularExpression")})
	headers := func() props {
		list := listOf(16, header)
		list.XListType, list.XListMapKeys = ptr("map"), []string{"name"}
		return list
	}
	modifier := func() props {
		return *object(nil, nil, map[string]props{"add": headers(), "set": headers(), "remove": listOf(16, &props{Type: "string"})})
	}
	path := *object(nil, []string{"type"}, map[string]props{"type": one("ReplaceFullPath", "ReplacePrefixMatch"), "replaceFullPath": {Type: "string", MaxLength: ptr(int64(1024))}, "replacePrefixMatch": {Type: "string", MaxLength: ptr(int64(1024))}})
	filter := func() *props {
		kinds := []string{"RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "RequestRedirect", "URLRewrite", "ExtensionRef"}
		properties := map[string]props{
			"requestHeaderModifier": modifier(), "responseHeaderModifier": modifier(), "extensionRef": *object(nil, []string{"group", "kind", "name"}, map[string]props{"group": name, "kind": name, "name": name}),
			"requestMirror":   *object(nil, []string{"backendRef"}, map[string]props{"backendRef": *object(needsPort, []string{"name"}, reference())}),
			"requestRedirect": *object(nil, nil, map[string]props{"hostname": name, "path": path, "port": {Type: "integer", Format: "int32", Minimum: ptr(1.0), Maximum: ptr(65535.0)}, "scheme": one("http", "https"), "statusCode": {Type: "integer"}}),
			"urlRewrite":      *object(nil, nil, map[string]props{"hostname": name, "path": path}),
		}
		var rules apiextensionsv1.ValidationRules
		for _, k := range kinds {
			field := string(k[0]|0x20) + k[1:]
			if k == "URLRewrite" {
				field = "urlRewrite"
			}
			rules = append(rules, apiextensionsv1.ValidationRule{Rule: fmt.Sprintf("!(has(self.%s) && self.type != '%s')", field, k), Message: "it must be absent"})
		}
		if later {
			kinds = append(kinds, "CORS")
			properties["cors"] = *object(nil, nil, map[string]props{"allowOrigins": listOf(64, &text), "maxAge": {Type: "integer", Minimum: ptr(1.0)}})
		}
		properties["type"] = one(kinds...)
		return object(rules, []string{"type"}, properties)
	}
	onlyOnce := apiextensionsv1.ValidationRules{
		{Rule: `!(self.exists(f, f.type == 'RequestRedirect') && self.exists(f, f.type == 'URLRewrite'))`, Message: "only one of the two"},
		{Rule: `self.filter(f, f.type == 'RequestHeaderModifier').size() <= 1`, Message: "it cannot be repeated"},
	}
	filters := listOf(16, filter())
	filters.XValidations = onlyOnce
	backendProperties := reference()
	backendProperties["weight"] = props{Type: "integer", Format: "int32", Minimum: ptr(0.0), Maximum: ptr(1e6), Default: &apiextensionsv1.JSON{Raw: []byte("1")}}
	backendProperties["filters"] = filters
	backend := object(needsPort, []string{"name"}, backendProperties)
	match := object(nil, nil, map[string]props{
		"headers": headers(), "queryParams": headers(), "method": one("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"),
		"path": *object(nil, nil, map[string]props{"type": one("Exact", "PathPrefix", "RegularExpression"), "value": {Type: "string", MaxLength: ptr(int64(1024))}}),
	})
	ruleProperties := map[string]props{"name": name, "filters": filters, "backendRefs": listOf(16, backend), "matches": listOf(64, match),
		"timeouts": *object(nil, nil, map[string]props{"request": {Type: "string", Pattern: `^([0-9]{1,5}(h|m|s|ms)){1,4}$`}})}
	if later {
		ruleProperties["retry"] = *object(nil, nil, map[string]props{"attempts": {Type: "integer"}, "codes": listOf(64, &props{Type: "integer", Minimum: ptr(400.0), Maximum: ptr(599.0)})})
	}
	rule := object(apiextensionsv1.ValidationRules{{Rule: `!has(self.filters) || !self.filters.exists(f, has(f.requestRedirect)) || !has(self.backendRefs) || size(self.backendRefs) == 0`, Message: "a redirect has no backends"}}, nil, ruleProperties)
	hostname := props{Type: "string", MinLength: ptr(int64(1)), MaxLength: ptr(int64(253 - salt)), Pattern: `^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`}
	parents := reference()
	if later {
		parents["sectionName"] = name
	}
	return &props{Type: "object", Properties: map[string]props{"spec": *object(nil, nil, map[string]props{
		"hostnames": listOf(16, &hostname), "parentRefs": listOf(32, object(nil, []string{"name"}, parents)), "rules": listOf(16, rule),
	})}}
}

// BenchmarkNegotiateRoutes measures meeting and comparing two versions of a schema of the size of
// an HTTPRoute, with examples for the differences.
func BenchmarkNegotiateRoutes(b *testing.B) {
	cpu := func() time.Duration {
		var used syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
			b.Fatal(err)
		}
		return time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	offer := func(location string, later bool, salt int) Offer {
		spec := apiresourcev1alpha1.CommonAPIResourceSpec{OpenAPIV3Schema: runtime.RawExtension{Raw: []byte(encode(route(later, salt)))}}
		return Offer{Location: location, Spec: spec}
	}
	began, most := cpu(), time.Duration(0)
	for i := range b.N {
		// Use another schema each time, because results are cached.
		east, west := offer("east", false, i), offer("west", true, i)
		before := cpu()
		if agreement, why := Meet(east, west); agreement == nil || len(agreement.Dropped) == 0 {
			b.Fatalf("there is no meet, or nothing is dropped: %v", why)
		}
		if len(Compatible(west, east)) == 0 {
			b.Fatal("the two are compatible")
		}
		most = max(most, cpu()-before)
	}
	b.ReportMetric((cpu()-began).Seconds()/math.Max(1, float64(b.N)), "cpu-s/op")
	b.ReportMetric(most.Seconds(), "cpu-s-max")
}

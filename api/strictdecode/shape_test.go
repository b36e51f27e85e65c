package strictdecode_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	v0 "rik.dev/rik/api/rik/v0"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/api/strictdecode"
)

func texts(errs field.ErrorList) []string {
	var list []string
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}

func TestCheck(t *testing.T) {
	t.Parallel()
	const whole = "must be a whole number from -2147483648 to 2147483647"
	for name, tc := range map[string]struct {
		document string
		into     any
		want     []string
	}{
		"all is well": {`{"apiVersion":"rik.dev/v1alpha1","metadata":{"name":"a","labels":{"b":"c"},"creationTimestamp":null},
			"spec":{"replicas":3,"containers":[{"name":"a","args":["1"],"resources":{"limits":{"memory":"1Gi","cpu":2}}}],
			"strategy":{"maxSurge":"25%"},"disruption":{"maxUnavailable":1}}}`, &rikv1alpha1.Workload{}, nil},
		"quantity": {`{"spec":{"containers":[{"resources":{"limits":{"memory":"abc","cpu":true}}}]}}`, &rikv1alpha1.Workload{}, []string{
			"spec.containers[0].resources.limits.cpu: Invalid value: true: must be a quantity: a number with or without a unit, such as 500m, 2, 64Mi or 1Gi",
			`spec.containers[0].resources.limits.memory: Invalid value: "abc": must be a quantity: a number with or without a unit, such as 500m, 2, 64Mi or 1Gi`}},
		"number too large":   {`{"spec":{"replicas":99999999999}}`, &rikv1alpha1.Workload{}, []string{"spec.replicas: Invalid value: 99999999999: " + whole}},
		"fraction":           {`{"spec":{"replicas":1.5}}`, &rikv1alpha1.Workload{}, []string{"spec.replicas: Invalid value: 1.5: " + whole}},
		"text for a number":  {`{"spec":{"priority":"high"}}`, &rikv1alpha1.Workload{}, []string{`spec.priority: Invalid value: "high": ` + whole}},
		"number for text":    {`{"spec":{"containers":[{"args":["a",1]}]}}`, &rikv1alpha1.Workload{}, []string{`spec.containers[0].args[1]: Invalid value: 1: must be text: put it in quotes, "1"`}},
		"version for text":   {`{"spec":{"app":{"version":1.10}}}`, &rikv1alpha1.Workload{}, []string{`spec.app.version: Invalid value: 1.10: must be text: put it in quotes, as it is written`}},
		"text for a list":    {`{"spec":{"containers":[{"args":"a"}]}}`, &rikv1alpha1.Workload{}, []string{`spec.containers[0].args: Invalid value: "a": must be a list`}},
		"list for an object": {`{"spec":[]}`, &rikv1alpha1.Workload{}, []string{"spec: Invalid value: []: must be an object: keys with values"}},
		"label":              {`{"metadata":{"labels":{"a/b":1}}}`, &rikv1alpha1.Workload{}, []string{`metadata.labels[a/b]: Invalid value: 1: must be text: put it in quotes, "1"`}},
		"number or percentage": {`{"spec":{"disruption":{"maxUnavailable":[1]}}}`, &rikv1alpha1.Workload{},
			[]string{`spec.disruption.maxUnavailable: Invalid value: [1]: must be a whole number, or a percentage such as "25%"`}},
		"bool":                      {`{"spec":{"unschedulable":"yes"}}`, &rikv1alpha1.Node{}, []string{`spec.unschedulable: Invalid value: "yes": must be true or false`}},
		"time":                      {`{"metadata":{"creationTimestamp":"now"}}`, &rikv1alpha1.Node{}, []string{`metadata.creationTimestamp: Invalid value: "now": must be a time such as 2006-01-02T15:04:05Z`}},
		"directives of patches":     {`{"spec":{"containers":[{"$patch":"replace"},{"resources":{"limits":{"$patch":"replace"}}}],"$retainKeys":["a"]}}`, &rikv1alpha1.Workload{}, nil},
		"unknown keys are not ours": {`{"spec":{"replica":"x"}}`, &rikv1alpha1.Workload{}, nil},
		"text that is not JSON":     {`{"spec"`, &rikv1alpha1.Workload{}, nil},
		"no object":                 {`"garbage"`, &rikv1alpha1.Workload{}, []string{`document: Invalid value: "garbage": must be an object: keys with values`}},
		"a published port":          {`{"spec":{"containers":[{"ports":{"port":"http"}}]}}`, &v0.Definition{}, []string{`spec.containers[0].ports.port: Invalid value: "http": ` + whole}},
		"published ports":           {`{"spec":{"containers":[{"ports":[{"port":1},{"port":[]}]}]}}`, &v0.Definition{}, []string{"spec.containers[0].ports[1].port: Invalid value: []: " + whole}},
		"no published ports":        {`{"spec":{"containers":[{"ports":80}]}}`, &v0.Definition{}, []string{"spec.containers[0].ports: Invalid value: 80: must be an object, or a list of objects"}},
		"much text":                 {`{"spec":{"priority":"` + strings.Repeat("ä", 100) + `"}}`, &rikv1alpha1.Workload{}, []string{`spec.priority: Invalid value: "` + strings.Repeat("ä", 60) + `...": ` + whole}},
		"bytes":                     {`{"data":{"a":"?"}}`, &struct{ Data map[string][]byte }{}, nil},
		"bytes by their key":        {`{"Data":{"a":"?","b":"YWJj"}}`, &struct{ Data map[string][]byte }{}, []string{`Data.a: Invalid value: "?": must be text in base64`}},
		"unsigned and floats": {`{"A":-1,"B":"x"}`, &struct {
			A uint8
			B float64
		}{}, []string{"A: Invalid value: -1: must be a whole number from 0 to 255", `B: Invalid value: "x": must be a number`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, texts(strictdecode.Check([]byte(tc.document), tc.into))); diff != "" {
				t.Errorf("Check (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckAt(t *testing.T) {
	t.Parallel()
	for pointer, tc := range map[string]struct{ value, want string }{
		"/spec/replicas":                             {`"many"`, "spec.replicas: Invalid value"},
		"/spec/containers/0/args/-":                  {`1`, "spec.containers[0].args[-]: Invalid value: 1"},
		"/spec/containers/1/resources/limits/memory": {`"lots"`, "spec.containers[1].resources.limits.memory: Invalid value"},
		"/spec/containers/0":                         {`{"name":1}`, "spec.containers[0].name: Invalid value: 1"},
		"/metadata/labels/a~1b":                      {`1`, "metadata.labels[a/b]: Invalid value: 1"},
		"":                                           {`1`, "document: Invalid value: 1"},
		"/spec/nothing/there":                        {`1`, ""},
		"/spec/replicas/below":                       {`1`, ""},
		"/spec/deploy":                               {`"Manual"`, ""},
	} {
		t.Run(pointer, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(texts(strictdecode.CheckAt(pointer, []byte(tc.value), &rikv1alpha1.Workload{})), "; ")
			if !strings.HasPrefix(got, tc.want) || (tc.want == "") != (got == "") {
				t.Errorf("CheckAt = %q, want %q", got, tc.want)
			}
		})
	}
}

// TestCheckAgreesWithTheDecoder puts values of each kind at random places of a document.
func TestCheckAgreesWithTheDecoder(t *testing.T) {
	t.Parallel()
	values := []string{`null`, `true`, `0`, `-1`, `1.5`, `99999999999`, `""`, `"a"`, `"1Gi"`, `[]`, `[1]`, `["a"]`, `{}`, `{"a":1}`, `{"name":"a"}`, `[{"name":2}]`}
	places := []string{
		`%`, `{"spec":%}`, `{"metadata":%}`, `{"metadata":{"labels":%}}`, `{"metadata":{"deletionTimestamp":%}}`, `{"spec":{"replicas":%}}`,
		`{"spec":{"containers":%}}`, `{"spec":{"containers":[{"args":%}]}}`, `{"spec":{"containers":[{"env":%}]}}`,
		`{"spec":{"containers":[{"resources":{"limits":{"memory":%}}}]}}`, `{"spec":{"containers":[{"ports":%}]}}`,
		`{"spec":{"strategy":{"maxSurge":%}}}`, `{"spec":{"runtime":%}}`, `{"spec":{"revisionHistoryLimit":%}}`, `{"status":%}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		document := strings.Replace(rapid.SampledFrom(places).Draw(t, "place"), "%", rapid.SampledFrom(values).Draw(t, "value"), 1)
		for _, into := range []any{&rikv1alpha1.Workload{}, &v0.Definition{}} {
			err := json.Unmarshal([]byte(document), into)
			if errs := strictdecode.Check([]byte(document), into); (err == nil) != (len(errs) == 0) {
				t.Errorf("Check(%s) into %T = %v, and the decoder says %v", document, into, errs, err)
			}
		}
	})
}

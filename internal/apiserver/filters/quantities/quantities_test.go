package quantities

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"rik.dev/rik/api/quantity"
	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

func TestWrap(t *testing.T) {
	t.Parallel()
	handler := Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}), scheme.Codecs)
	const good, bad = `{"spec":{"hard":{"cpu":"1e3"}}}`, `{"spec":{"hard":{"cpu":"1e-999999999"}}}`
	for name, tc := range map[string]struct {
		method, contentType, body string
		refused                   bool
	}{
		"JSON":              {http.MethodPost, "application/json", bad, true},
		"no type":           {http.MethodPost, "", bad, true},
		"a charset":         {http.MethodPut, "application/json; charset=utf-8", bad, true},
		"YAML":              {http.MethodPost, "application/yaml", "spec: {hard: {cpu: '1e-999999999'}}", true},
		"escaped YAML":      {http.MethodPatch, "application/apply-patch+yaml", `spec: {hard: {cpu: "1\x65-999999999"}}`, true},
		"a merge patch":     {http.MethodPatch, "application/merge-patch+json", bad, true},
		"a JSON patch":      {http.MethodPatch, "application/json-patch+json", `[{"op":"add","path":"/spec/hard/cpu","value":"1e-999999999"}]`, true},
		"protobuf":          {http.MethodPost, "application/vnd.kubernetes.protobuf", "\x0a\x0e\x0a\x0c1e-999999999", true},
		"one that is right": {http.MethodPost, "application/json", good, false},
		"YAML that is not":  {http.MethodPost, "application/yaml", "1e-999999999: [", false},
		"too much":          {http.MethodPost, "application/json", strings.Repeat(" ", 3<<20) + bad, false},
		"nothing":           {http.MethodGet, "", "", false},
	} {
		request := httptest.NewRequestWithContext(t.Context(), tc.method, "/api/v1/namespaces/default/resourcequotas", strings.NewReader(tc.body))
		request.Header.Set("Content-Type", tc.contentType)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request)
		switch said := w.Body.String(); {
		case tc.refused && (w.Code != http.StatusBadRequest || !strings.Contains(said, "exponent of a quantity")):
			t.Errorf("%s: status %d, %s, want it refused", name, w.Code, said)
		case !tc.refused && (w.Code != http.StatusOK || said != tc.body):
			t.Errorf("%s: status %d, %d bytes, want it passed on", name, w.Code, len(said))
		}
	}
}

// TestEveryQuantityIsChecked checks the quantities of all types, including those that later
// versions add. The keys in a map of quantities are chosen by users.
func TestEveryQuantityIsChecked(t *testing.T) {
	t.Parallel()
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), rikv1alpha1.AddToScheme(types), workloadv1alpha1.AddToScheme(types)); err != nil {
		t.Fatal(err)
	}
	found := 0
	for kind, of := range types.AllKnownTypes() {
		eachQuantity(of, nil, nil, func(path []string) {
			found++
			document := `"1e-999999999"`
			for _, name := range slices.Backward(path) {
				document = `{"` + name + `":` + document + `}`
			}
			if err := quantity.CheckJSON([]byte(document)); err == nil {
				t.Errorf("%s of a %s is not looked at", strings.Join(path, "."), kind.Kind)
			}
		})
	}
	if found < 500 {
		t.Errorf("%d quantities were found in all types, want far more", found)
	}
}

// eachQuantity calls f with the path of every quantity in a type.
func eachQuantity(of reflect.Type, path []string, above []reflect.Type, f func([]string)) {
	switch {
	case of == reflect.TypeFor[resource.Quantity]():
		f(path)
	case of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice:
		eachQuantity(of.Elem(), path, above, f)
	case of.Kind() == reflect.Map:
		eachQuantity(of.Elem(), append(slices.Clone(path), "data"), above, f)
	case of.Kind() == reflect.Struct && !slices.Contains(above, of):
		above = append(slices.Clone(above), of)
		for i := range of.NumField() {
			field := of.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				eachQuantity(field.Type, path, above, f)
				continue
			}
			eachQuantity(field.Type, append(slices.Clone(path), name), above, f)
		}
	}
}

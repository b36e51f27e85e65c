package quantities

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
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

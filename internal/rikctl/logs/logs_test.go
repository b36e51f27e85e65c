package logs

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/clierror"
	"rik.dev/rik/internal/rikctl/scheme"
)

// TestALogThatBreaksOffSaysSo covers the loss of a node during a log. The server then ends the
// stream without an error.
func TestALogThatBreaksOffSaysSo(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{true, false} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "a line\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}))
		s.EnableHTTP2 = second
		s.StartTLS()
		t.Cleanup(s.Close)
		config := &rest.Config{Host: s.URL, APIPath: "/apis", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
		if !second {
			config.NextProtos = []string{"http/1.1"}
		}
		config.GroupVersion = &rikv1alpha1.SchemeGroupVersion
		config.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
		c, err := rest.RESTClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		i := &rikv1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1"}}
		err = copyLog(t.Context(), c, i, &logFlags{}, &lineWriter{out: &out}, false)
		if out.String() != "a line\n" || err == nil || !strings.Contains(err.Error(), "broke off") || !errors.As(err, &clierror.AdvisedError{}) {
			t.Errorf("HTTP/2 %v: printed %q and returned %v, want the line, and that the rest is missing", second, out.String(), err)
		}
	}
}

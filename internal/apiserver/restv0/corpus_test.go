package restv0_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/apiserver/restv0"
	"rik.dev/rik/internal/testkit/apitest"
)

var update = flag.Bool("update", false, "rewrite the answers in testdata")

// TestCorpus sends the requests of each file in testdata to an empty server and compares the
// responses. A line that starts with ">" is a request, the following lines that start with "|"
// are its body, and those with "<" are the response. UIDs and generated names become
// placeholders, <uid-1> or web-<name-1>, which later requests may use. Every response must also
// match the OpenAPI document.
func TestCorpus(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := alone(t)
			r := &replay{t: t, client: admin(t, s), router: router(t), real: map[string]string{}, shown: map[string]string{}}
			got := r.run(string(want))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		})
	}
}

// replay is one run of a file.
type replay struct {
	t      *testing.T
	client client
	router routers.Router
	// real maps placeholders to real values, and shown maps real values to placeholders.
	real, shown map[string]string
	out         strings.Builder
}

func (r *replay) run(file string) string {
	lines := strings.Split(strings.TrimSuffix(file, "\n"), "\n")
	for i := 0; i < len(lines); {
		if !strings.HasPrefix(lines[i], ">") {
			if !strings.HasPrefix(lines[i], "<") {
				r.out.WriteString(lines[i] + "\n")
			}
			i++
			continue
		}
		method, path, ok := strings.Cut(strings.TrimSpace(lines[i][1:]), " ")
		if !ok {
			r.t.Fatalf("request %q has no path", lines[i])
		}
		r.out.WriteString(lines[i] + "\n")
		var body []string
		for i++; i < len(lines) && strings.HasPrefix(lines[i], "|"); i++ {
			r.out.WriteString(lines[i] + "\n")
			body = append(body, strings.TrimPrefix(lines[i][1:], " "))
		}
		r.send(method, r.reveal(path), r.reveal(strings.Join(body, "\n")))
	}
	return r.out.String()
}

func (r *replay) send(method, path, body string) {
	header := http.Header{}
	if body != "" {
		header.Set("Content-Type", "application/json")
	}
	got := r.client.send(r.t, method, path, header, body)
	fmt.Fprintf(&r.out, "< %d\n", got.status)
	if got.body != "" {
		r.out.WriteString("< " + r.hide(strings.TrimSuffix(got.body, "\n")) + "\n")
	}
	r.validate(method, path, header, body, got)
}

var (
	uid  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	name = regexp.MustCompile(`"web-[bcdfghjklmnpqrstvwxz2456789]{5}"`)
)

// hide replaces values that differ between runs.
func (r *replay) hide(text string) string {
	text = uid.ReplaceAllStringFunc(text, func(s string) string {
		if strings.HasPrefix(s, "00000000-") {
			return s // a fixed ID of the corpus
		}
		return r.placeholder(s, "<uid-%d>")
	})
	return name.ReplaceAllStringFunc(text, func(s string) string {
		return `"web-` + r.placeholder(strings.Trim(s, `"`)[len("web-"):], "<name-%d>") + `"`
	})
}

func (r *replay) placeholder(value, form string) string {
	if known, ok := r.shown[value]; ok {
		return known
	}
	for n := 1; ; n++ {
		shown := fmt.Sprintf(form, n)
		if _, taken := r.real[shown]; !taken {
			r.real[shown], r.shown[value] = value, shown
			return shown
		}
	}
}

func (r *replay) reveal(text string) string {
	for shown, value := range r.real {
		text = strings.ReplaceAll(text, shown, value)
	}
	return text
}

// validate checks a response, and a request that was accepted, against the document.
func (r *replay) validate(method, path string, header http.Header, body string, got response) {
	request, err := http.NewRequestWithContext(r.t.Context(), method, "https://rik"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header = header
	route, parameters, err := r.router.FindRoute(request)
	if err != nil {
		if got.status != http.StatusNotFound && got.status != http.StatusMethodNotAllowed && got.status != http.StatusBadRequest {
			r.t.Errorf("%s %s = %d, and is not in the document: %v", method, path, got.status, err)
		}
		return
	}
	input := &openapi3filter.RequestValidationInput{Request: request, PathParams: parameters, Route: route}
	if got.status < 300 {
		if err := openapi3filter.ValidateRequest(context.Background(), input); err != nil {
			r.t.Errorf("%s %s was accepted but does not fit the document: %v", method, path, err)
		}
	}
	answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: got.status, Header: got.header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true}}
	answer.SetBodyBytes([]byte(got.body))
	if err := openapi3filter.ValidateResponse(context.Background(), answer); err != nil {
		r.t.Errorf("answer to %s %s does not fit the document: %v", method, path, err)
	}
}

func loadDocument(t *testing.T) *openapi3.T {
	t.Helper()
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatal(err)
	}
	return document
}

func router(t *testing.T) routers.Router {
	t.Helper()
	out, err := gorillamux.NewRouter(loadDocument(t))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDocument: the document is valid, is the one that the server serves, and contains exactly
// the routes that are served.
func TestDocument(t *testing.T) {
	t.Parallel()
	document := loadDocument(t)
	if err := document.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	s := apitest.Shared(t)
	c := admin(t, s)
	text, err := os.ReadFile("openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.get(t, "/api/v0/openapi.json"); got.status != 200 || !bytes.Equal(compact(t, []byte(got.body)), compact(t, text)) {
		t.Errorf("GET openapi.json = %d and %d bytes, want the document", got.status, len(got.body))
	}
	documented := map[string]bool{}
	for path, item := range document.Paths.Map() {
		for method := range item.Operations() {
			documented[method+" "+path] = true
		}
	}
	for _, served := range restv0.Served() {
		if !documented[served] {
			t.Errorf("%s is served and not in the document", served)
		}
		delete(documented, served)
		method, path, _ := strings.Cut(served, " ")
		answers(t, c, method, strings.ReplaceAll(path, "{workloadid}", "00000000-0000-0000-0000-000000000000"))
	}
	for left := range documented {
		t.Errorf("%s is in the document and not served", left)
	}
}

// answers checks that a route exists: its own method gets another response than other methods,
// and than an unknown path.
func answers(t *testing.T, c client, method, path string) {
	t.Helper()
	if got := c.send(t, method, path, http.Header{"Content-Type": {"application/json"}}, "[]"); got.status == 405 || strings.Contains(got.body, "the path does not exist") {
		t.Errorf("%s %s = %d %s", method, path, got.status, got.body)
	}
	if got := c.send(t, http.MethodPut, path, nil, ""); got.status != 405 || got.header.Get("Allow") != method {
		t.Errorf("PUT %s = %d, Allow %q; want 405 and %s", path, got.status, got.header.Get("Allow"), method)
	}
	if got := c.get(t, path+"x"); path != "/api/v0/workloads.instances/00000000-0000-0000-0000-000000000000" && got.status != 404 {
		t.Errorf("GET %sx = %d, want 404", path, got.status)
	}
}

package restv0

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	kjson "sigs.k8s.io/json"

	"rik.dev/rik/api/strictdecode"
)

const (
	// maxBody is the maximum size of a body in bytes. It is below the datastore's limit for an
	// object.
	maxBody = 1 << 20

	paramLimit     = "limit"
	paramNamespace = "namespace"
)

// bodyTypes are the accepted content types of a JSON body. The published server did not check
// the type, and curl's default is that of a form.
var bodyTypes = []string{"application/json", "text/json", "text/plain", "application/octet-stream", "application/x-www-form-urlencoded"}

// api is the handler of all routes.
type api struct {
	Config
	// endpoints maps paths and then methods to endpoints.
	endpoints map[string]map[string]endpoint
	// tenantIDs is held while a tenant is created, so that no two tenants get the same ID.
	tenantIDs sync.Mutex
}

// New creates the handler. It must be mounted behind authentication: every request's context
// must have a user.
func New(c Config) (http.Handler, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	a := &api{Config: c, endpoints: map[string]map[string]endpoint{}}
	for _, e := range endpoints() {
		if a.endpoints[e.path] == nil {
			a.endpoints[e.path] = map[string]endpoint{}
		}
		a.endpoints[e.path][e.method] = e
	}
	return a, nil
}

// answer is a status code and an optional body.
type answer struct {
	code int
	body any
}

// call is one request.
type call struct {
	*api
	*http.Request
	w    http.ResponseWriter
	user user.Info
	// id is the ID at the end of the path, if the path has one.
	id string
	// namespace is the namespace in the query. It is empty if there is none.
	namespace string
	// limit is the limit of a list. Zero means no limit.
	limit int64
}

// ServeHTTP answers every request in JSON.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	got, err := a.serve(w, r)
	if err != nil {
		problem := problemOf(err)
		if problem.retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(problem.retryAfter))
		}
		got = answer{problem.Code, problem}
	}
	write(w, got)
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) (answer, error) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		return answer{}, apierrors.NewUnauthorized("no user")
	}
	methods, id := a.find(r.URL.Path)
	if methods == nil {
		return answer{}, &problem{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: fmt.Sprintf("the path does not exist; %s/openapi.json lists all paths", prefix)}
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	e, ok := methods[method]
	if !ok {
		for allowed := range methods {
			w.Header().Set("Allow", allowed)
			return answer{}, &problem{Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
				Message: fmt.Sprintf("%s accepts %s, not %s", r.URL.Path, allowed, r.Method)}
		}
	}
	c := &call{api: a, Request: r, w: w, user: who, id: id}
	if err := c.readQuery(e.parameters); err != nil {
		return answer{}, err
	}
	return e.serve(c)
}

// find returns the endpoints of a path, by method, and the ID at the end of the path.
func (a *api) find(path string) (map[string]endpoint, string) {
	id, ok := strings.CutPrefix(path, instancesOf)
	if ok && (id == "" || id[0] == '/') {
		return map[string]endpoint{http.MethodGet: {serve: (*call).listInstancesOf, parameters: listParameters}}, strings.TrimPrefix(id, "/")
	}
	return a.endpoints[path], ""
}

// readQuery refuses unknown parameters. Otherwise a client that misspells limit or namespace
// would get, or change, other objects.
func (c *call) readQuery(known []string) error {
	query, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return invalidField("", "malformed query: "+err.Error())
	}
	for name, values := range query {
		switch {
		case !slices.Contains(known, name):
			return invalidField(name, "unknown parameter of the query")
		case len(values) > 1:
			return invalidField(name, "must not be set more than once")
		}
	}
	if query.Has(paramLimit) {
		text := query.Get(paramLimit)
		if c.limit, err = strconv.ParseInt(text, 10, 32); err != nil || c.limit < 1 {
			return invalidField(paramLimit, fmt.Sprintf("must be a whole number of at least 1, not %q", text))
		}
	}
	if query.Has(paramNamespace) {
		c.namespace = query.Get(paramNamespace)
		if faults := validation.IsDNS1123Label(c.namespace); len(faults) > 0 {
			return invalidField(paramNamespace, strings.Join(faults, "; "))
		}
	}
	return nil
}

// orDefault returns the namespace for a new object.
func (c *call) orDefault() string {
	if c.namespace == "" {
		return metav1.NamespaceDefault
	}
	return c.namespace
}

// readBody reads a body, which must be one JSON document.
func (c *call) readBody() ([]byte, error) {
	if err := c.validateContentType(); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &problem{Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge,
			Message: fmt.Sprintf("body is larger than %d bytes", tooLarge.Limit)}
	case err != nil:
		return nil, invalidField("", "reading the body: "+err.Error())
	case len(body) == 0:
		return nil, invalidField("", "body is empty; it must be a JSON object")
	}
	var syntax any
	if err := json.Unmarshal(body, &syntax); err != nil {
		return nil, invalidField("", "body is not JSON: "+err.Error())
	}
	if _, ok := syntax.(map[string]any); !ok {
		return nil, invalidField("", "body must be a JSON object")
	}
	return body, nil
}

// validateContentType allows a web page to send only JSON. A browser sends a preflight request
// before JSON. A browser would send the other types without one, with the user's
// certificate.
func (c *call) validateContentType() error {
	header := c.Header.Get("Content-Type")
	if header == "" && c.Header.Get("Origin") == "" {
		return nil
	}
	allowed := bodyTypes
	if c.Header.Get("Origin") != "" {
		allowed = bodyTypes[:1]
	}
	media, _, err := mime.ParseMediaType(header)
	if err != nil || !slices.Contains(allowed, media) {
		return &problem{Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: fmt.Sprintf("content type %q is not application/json", header)}
	}
	return nil
}

// decode reads the body into a struct. It reports every value of a wrong type, or otherwise
// every unknown or duplicate field.
func (c *call) decode(into any) error {
	body, err := c.readBody()
	if err != nil {
		return err
	}
	if err := strictdecode.Join(strictdecode.Check(body, into)); err != nil {
		return malformed(err)
	}
	problems, err := kjson.UnmarshalStrict(body, into)
	if err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return malformed(errors.Join(problems...))
	}
	return nil
}

func write(w http.ResponseWriter, a answer) {
	if a.body == nil {
		w.WriteHeader(a.code)
		return
	}
	// The content type and nosniff prevent a browser from treating this as a page, so no
	// characters need to be escaped.
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(a.body); err != nil {
		// Every response can be marshaled.
		panic(fmt.Sprintf("programmer error: marshaling an answer: %v", err))
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(a.code)
	// An error means that the client has disconnected, and cannot receive a report.
	_, _ = w.Write(body.Bytes())
}

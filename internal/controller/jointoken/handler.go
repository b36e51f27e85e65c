package jointoken

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/controller/reply"
	"rik.dev/rik/internal/rpc/jointoken"
)

const (
	// maxRequest bounds the body of a request, in bytes.
	maxRequest = 16 << 10
	// maxDescription and maxSeconds bound the fields of a token. maxSeconds is a hundred years.
	maxDescription = 256
	maxSeconds     = 100 * 366 * 24 * 3600
)

var resource = schema.GroupResource{Group: rikv1alpha1.GroupName, Resource: jointoken.Resource}

// Handler serves tokens at [jointoken.Path]. It must be mounted behind authorization.
func (t *Tokens) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A response may contain a token.
		w.Header().Set("Cache-Control", "no-store")
		code, answer, err := t.serve(w, r)
		reply.JSON(w, code, answer, err)
	})
}

func (t *Tokens) serve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	id := strings.TrimPrefix(r.URL.Path, jointoken.Path)
	switch {
	case r.Method == http.MethodGet && id == "":
		items, err := t.List(r.Context())
		return http.StatusOK, jointoken.List{Items: items}, err
	case r.Method == http.MethodPost && id == "":
		made, err := t.create(w, r)
		return http.StatusCreated, made, err
	case r.Method == http.MethodDelete && id != "":
		err := t.Delete(r.Context(), id)
		return http.StatusOK, metav1.Status{Status: metav1.StatusSuccess}, err
	}
	return 0, nil, apierrors.NewMethodNotSupported(resource, strings.ToLower(r.Method))
}

func (t *Tokens) create(w http.ResponseWriter, r *http.Request) (*jointoken.Created, error) {
	var asked jointoken.Request
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&asked); err != nil {
		return nil, apierrors.NewBadRequest("reading the request: " + err.Error())
	}
	switch {
	case asked.Seconds < 0 || asked.Seconds > maxSeconds:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("a lifetime of %d seconds is not between 0 (no expiry) and %d", asked.Seconds, maxSeconds))
	case len(asked.Description) > maxDescription:
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the description has %d bytes, and the limit is %d", len(asked.Description), maxDescription))
	}
	// Permission reads the same parameter.
	role := cmp.Or(jointoken.Role(r.URL.Query().Get(jointoken.RoleParameter)), jointoken.RoleNode)
	if role != jointoken.RoleNode && role != jointoken.RoleServer {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("the role %q of a token is neither %s nor %s", role, jointoken.RoleNode, jointoken.RoleServer))
	}
	token, err := t.Create(r.Context(), Options{Life: time.Duration(asked.Seconds) * time.Second, Description: asked.Description, Role: role})
	if err != nil {
		return nil, err
	}
	info := jointoken.Info{ID: token.ID, Role: role, Description: asked.Description, Created: t.now().UTC().Truncate(time.Second)}
	if asked.Seconds > 0 {
		expires := info.Created.Add(time.Duration(asked.Seconds) * time.Second)
		info.Expires = &expires
	}
	return &jointoken.Created{Info: info, Token: token.Text()}, nil
}

package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/registry/instance"
	"rik.dev/rik/internal/rpc/nodeimage"
	"rik.dev/rik/internal/rpc/nodev1"
)

// Images serves the images of a node; see package nodeimage. It passes requests to the node and does
// not interpret the node's answers.
type Images struct {
	nodes      rest.Getter
	sessions   instance.Sessions
	authorizer authorizer.Authorizer
}

var (
	_ rest.Connecter       = &Images{}
	_ rest.StorageMetadata = &Images{}
)

// New returns an empty object of the subresource.
func (i *Images) New() runtime.Object { return &rik.Node{} }

// Destroy does nothing, because the storage belongs to nodes.
func (i *Images) Destroy() {}

// NewConnectOptions returns no options: they are query parameters.
func (i *Images) NewConnectOptions() (runtime.Object, bool, string) { return nil, false, "" }

// ConnectMethods returns the methods of package nodeimage, which become the verbs get, create and
// delete of RBAC.
func (i *Images) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodPost, http.MethodDelete}
}

// ProducesMIMETypes returns the types of the answers to a method.
func (i *Images) ProducesMIMETypes(verb string) []string {
	switch verb {
	case http.MethodPost:
		return []string{nodeimage.MediaTypeLines}
	case http.MethodGet:
		return []string{nodeimage.MediaTypeJSON, nodeimage.MediaTypeArchive}
	}
	return []string{nodeimage.MediaTypeJSON}
}

// ProducesObject returns an empty string, because the answers are no API objects.
func (i *Images) ProducesObject(string) any { return "" }

// Connect returns the handler that opens the session and copies it.
func (i *Images) Connect(ctx context.Context, name string, _ runtime.Object, responder rest.Responder) (http.Handler, error) {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := i.serve(ctx, w, req, name); err != nil {
			responder.Error(err)
		}
	}), nil
}

// demand is a request of a user in the form of a session.
type demand struct {
	images    *nodev1.ImagesSession
	mediaType string
	sends     bool // the body is the session's input
}

// serve returns an error only if it has not answered yet.
func (i *Images) serve(ctx context.Context, w http.ResponseWriter, req *http.Request, name string) error {
	if _, err := i.nodes.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return err
	}
	d, err := demanded(req)
	if err != nil {
		return err
	}
	if d.images.GetExport() != nil {
		if err := i.permitExport(ctx, name); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	session, err := i.open(ctx, name, d.images)
	if err != nil {
		return err
	}
	defer session.Close()
	// If the client disconnects, this ends a Recv that waits for the node.
	defer context.AfterFunc(req.Context(), session.Close)()
	var sending sync.WaitGroup
	if d.sends {
		// HTTP/1 otherwise reads the whole body before it writes a byte. HTTP/2 does not support the
		// method and does not need it.
		_ = http.NewResponseController(w).EnableFullDuplex()
		sending.Go(func() { send(session, req.Body) })
	}
	err = answer(w, session, d.mediaType)
	session.Close()
	if d.sends {
		// This ends a read that waits for the client.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
	sending.Wait()
	if errors.Is(err, errCut) {
		panic(http.ErrAbortHandler)
	}
	return statusOf(name, err)
}

// demanded parses and validates a request.
func demanded(req *http.Request) (demand, error) {
	query := req.URL.Query()
	switch req.Method {
	case http.MethodGet:
		if !query.Has(nodeimage.ParamExport) {
			return demand{images: &nodev1.ImagesSession{Request: &nodev1.ImagesSession_List{List: &nodev1.ListImages{}}}, mediaType: nodeimage.MediaTypeJSON}, nil
		}
		ref, err := parameter(query, nodeimage.ParamExport, true)
		return demand{images: &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Export{Export: &nodev1.ExportImage{Reference: ref}}}, mediaType: nodeimage.MediaTypeArchive}, err
	case http.MethodDelete:
		ref, err := parameter(query, nodeimage.ParamReference, true)
		return demand{images: &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Remove{Remove: &nodev1.RemoveImage{Reference: ref}}}, mediaType: nodeimage.MediaTypeJSON}, err
	}
	switch {
	case query.Has(nodeimage.ParamPull) == query.Has(nodeimage.ParamImport):
		return demand{}, apierrors.NewBadRequest(fmt.Sprintf("one of the parameters %s and %s is required", nodeimage.ParamPull, nodeimage.ParamImport))
	case query.Has(nodeimage.ParamImport):
		name, err := parameter(query, nodeimage.ParamImport, false)
		return demand{images: &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Import{Import: &nodev1.ImportImages{Name: name}}}, mediaType: nodeimage.MediaTypeLines, sends: true}, err
	}
	ref, err := parameter(query, nodeimage.ParamPull, true)
	if err != nil {
		return demand{}, err
	}
	auth, err := credentials(req.Body)
	return demand{images: &nodev1.ImagesSession{Request: &nodev1.ImagesSession_Pull{Pull: &nodev1.PullImage{Reference: ref, Auth: auth}}}, mediaType: nodeimage.MediaTypeLines}, err
}

// parameter returns a reference or a name. The node validates its form.
func parameter(query url.Values, name string, required bool) (string, error) {
	value := query.Get(name)
	if value == "" && required || len(value) > nodeimage.MaxReference {
		return "", apierrors.NewBadRequest(fmt.Sprintf("the parameter %s must have 1 to %d characters", name, nodeimage.MaxReference))
	}
	return value, nil
}

// credentials reads the body of a pull. Its errors do not quote it.
func credentials(body io.Reader) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(body, nodeimage.MaxCredentials+1))
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest("reading the body failed: " + err.Error())
	case len(data) > nodeimage.MaxCredentials:
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("credentials may have %d bytes", nodeimage.MaxCredentials))
	case len(bytes.TrimSpace(data)) == 0:
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var c nodeimage.Credentials
	if decoder.Decode(&c) != nil {
		return nil, apierrors.NewBadRequest(`the body of a pull must be {"dockerconfigjson": BASE64} or empty`)
	}
	return c.DockerConfigJSON, nil
}

// permitExport checks the verb export: who may only list images must not read their files.
func (i *Images) permitExport(ctx context.Context, name string) error {
	user, ok := genericapirequest.UserFrom(ctx)
	decision := authorizer.DecisionDeny
	var err error
	if ok && i.authorizer != nil {
		decision, _, err = i.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: user, Verb: nodeimage.VerbExport, Name: name,
			APIGroup: rik.GroupName, APIVersion: rikv1alpha1.SchemeGroupVersion.Version,
			Resource: "nodes", Subresource: nodeimage.Subresource, ResourceRequest: true,
		})
	}
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("this needs the verb %q on nodes/%s", nodeimage.VerbExport, nodeimage.Subresource)
	}
	return apierrors.NewForbidden(rik.Resource("nodes/"+nodeimage.Subresource), name, err)
}

func (i *Images) open(ctx context.Context, name string, images *nodev1.ImagesSession) (instance.Session, error) {
	if i.sessions == nil {
		return nil, apierrors.NewServiceUnavailable("this server is not connected to nodes")
	}
	s, err := i.sessions.Open(ctx, name, &nodev1.OpenSession{Kind: &nodev1.OpenSession_Images{Images: images}})
	switch {
	case errors.Is(err, instance.ErrNotConnected):
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("node %q is not connected; try again when `rikctl get nodes` shows it Ready", name))
	case errors.Is(err, instance.ErrNotOpened):
		return nil, failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("node %q: %v; try again, and see the log of the riklet on that node", name, err))
	case errors.Is(err, instance.ErrBusy):
		return nil, apierrors.NewTooManyRequests(err.Error(), 0)
	case err != nil:
		return nil, apierrors.NewInternalError(fmt.Errorf("opening a session on node %q: %w", name, err))
	}
	return s, nil
}

// send sends the body to the node, no faster than the node reads it. A body that breaks off ends the
// session, so that the node does not take it for complete.
func send(session instance.Session, body io.Reader) {
	buffer := make([]byte, nodev1.Piece)
	for {
		n, err := body.Read(buffer)
		if n > 0 && session.Send(nodev1.NewInput(bytes.Clone(buffer[:n]))) != nil {
			return // the node has ended the session
		}
		if errors.Is(err, io.EOF) {
			_ = session.Send(nodev1.NewEndOfInput())
			return
		}
		if err != nil {
			session.Close()
			return
		}
	}
}

// errCut means that the answer has begun and cannot be completed.
var errCut = errors.New("the answer is incomplete")

// endError is the error with which the node ended a session.
type endError struct{ end *nodev1.SessionEnd }

func (e *endError) Error() string { return e.end.GetError() }

// answer copies the node's answer to the client. Before its first byte it returns an error. After it,
// it returns errCut, so that the client does not take a part for the whole.
func answer(w http.ResponseWriter, session instance.Session, mediaType string) error {
	started := false
	start := func() {
		if !started {
			started = true
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(http.StatusOK)
		}
	}
	for {
		message, err := session.Recv()
		if data := message.GetOutput().GetData(); len(data) > 0 {
			start()
			if _, err := w.Write(data); err != nil {
				return nil //nolint:nilerr // the client has disconnected
			}
			flush(w)
		}
		end := message.GetEnd()
		switch {
		case err == nil && end == nil:
			continue
		case err == nil && end.GetError() == "":
			start()
			return nil
		case started:
			return errCut
		case err == nil:
			return &endError{end}
		case errors.Is(err, io.EOF):
			return errors.New("the connection to the node was lost")
		}
		return err
	}
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}

// statusOf converts the error of a session to an API error.
func statusOf(node string, err error) error {
	if err == nil {
		return nil
	}
	text := fmt.Sprintf("node %q: %v", node, err)
	var ended *endError
	if !errors.As(err, &ended) {
		return apierrors.NewServiceUnavailable(text)
	}
	switch ended.end.GetProblem() {
	case nodev1.Problem_PROBLEM_UNKNOWN_INSTANCE:
		// A riklet that does not know this kind of session looks for an instance.
		return failure(http.StatusNotImplemented, metav1.StatusReasonUnknown, fmt.Sprintf("the riklet of node %q is older than this server and does not support this; update it", node))
	case nodev1.Problem_PROBLEM_UNSUPPORTED:
		return failure(http.StatusNotImplemented, metav1.StatusReasonUnknown, text)
	case nodev1.Problem_PROBLEM_NOT_PRESENT:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound, text)
	case nodev1.Problem_PROBLEM_IN_USE:
		return failure(http.StatusConflict, metav1.StatusReasonConflict, text)
	case nodev1.Problem_PROBLEM_INVALID:
		return apierrors.NewBadRequest(text)
	}
	return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, text)
}

func failure(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

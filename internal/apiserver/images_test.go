package apiserver_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/apiserver/registry/registrytest"
	"rik.dev/rik/internal/rpc/nodeimage"
	"rik.dev/rik/internal/rpc/nodev1"
	"rik.dev/rik/internal/testkit/apitest"
	"rik.dev/rik/internal/testkit/poll"
)

// images is a node that has no images. It answers an import with the hash of the archive, and a pull
// with the credentials.
func images(s *registrytest.FarEnd, request *nodev1.ImagesSession) *nodev1.SessionEnd {
	switch {
	case request.GetList() != nil:
		s.Out(`{"items":[]}`)
	case request.GetExport() != nil:
		if request.GetExport().GetReference() == "none" {
			return &nodev1.SessionEnd{Error: "image not present: none", Problem: nodev1.Problem_PROBLEM_NOT_PRESENT}
		}
		s.Out("half an archive")
		if request.GetExport().GetReference() == "damaged" {
			return &nodev1.SessionEnd{Error: "the disk is damaged"}
		}
	case request.GetRemove() != nil:
		return &nodev1.SessionEnd{Error: "image in use: web uses it", Problem: nodev1.Problem_PROBLEM_IN_USE}
	case request.GetPull() != nil:
		s.Out(string(request.GetPull().GetAuth()))
	case request.GetImport() != nil:
		s.Out("receiving\n") // before the archive is complete
		hash := sha256.New()
		for {
			in := s.Read()
			if in == nil {
				return nil
			}
			_, _ = hash.Write(in.GetData())
			if in.GetEndOfInput() {
				break
			}
		}
		s.Out(hex.EncodeToString(hash.Sum(nil)))
	}
	return &nodev1.SessionEnd{}
}

// imageClient requests the images of a node.
type imageClient struct{ client *rest.RESTClient }

func newImageClient(t *testing.T, config *rest.Config) imageClient {
	t.Helper()
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &rikv1alpha1.SchemeGroupVersion
	config.NegotiatedSerializer = legacyscheme.Codecs.WithoutConversion()
	c, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return imageClient{c}
}

func (c imageClient) do(ctx context.Context, verb, node, parameter, value, mediaType string, body io.Reader) (string, error) {
	request := c.client.Verb(verb).Resource("nodes").Name(node).SubResource(nodeimage.Subresource)
	if parameter != "" {
		request = request.Param(parameter, value)
	}
	if body != nil {
		request = request.SetHeader("Content-Type", mediaType).Body(body)
	}
	answer, err := request.Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Close() }()
	text, err := io.ReadAll(answer)
	return string(text), err
}

// createNode creates node n1, which the tests of images share.
func createNode(t *testing.T, s *apitest.Server) {
	t.Helper()
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "rik.dev/v1alpha1", "kind": "Node", "metadata": map[string]any{"name": "n1"}}}
	_, err := dynamicClient(t, s.Config).Resource(rikv1alpha1.SchemeGroupVersion.WithResource("nodes")).Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func TestImagesOfANode(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	createNode(t, s)
	c := newImageClient(t, s.Config)
	// It looks like a document with a quantity, like a document of rik.dev that is not valid, and is
	// larger than a document may be.
	small := []byte(`{"kind":"Nonsense","cpu":"1e-999999999"}`)
	large := bytes.Repeat([]byte("archive\n"), 1<<20)
	sum := func(data []byte) string { h := sha256.Sum256(data); return hex.EncodeToString(h[:]) }
	for name, tc := range map[string]struct {
		verb, node, parameter, value, mediaType string
		body                                    []byte
		want                                    string
		failed                                  func(error) bool
	}{
		"list":               {verb: http.MethodGet, want: `{"items":[]}`},
		"export":             {verb: http.MethodGet, parameter: nodeimage.ParamExport, value: "app:1", want: "half an archive"},
		"export of no image": {verb: http.MethodGet, parameter: nodeimage.ParamExport, value: "none", failed: apierrors.IsNotFound},
		"export that breaks": {verb: http.MethodGet, parameter: nodeimage.ParamExport, value: "damaged", failed: func(err error) bool { return err != nil }},
		"export of nothing":  {verb: http.MethodGet, parameter: nodeimage.ParamExport, failed: apierrors.IsBadRequest},
		"remove": {verb: http.MethodDelete, parameter: nodeimage.ParamReference, value: "app:1", failed: func(err error) bool {
			return apierrors.IsConflict(err) && strings.Contains(err.Error(), `node "n1": image in use: web uses it`)
		}},
		"pull":                {verb: http.MethodPost, parameter: nodeimage.ParamPull, value: "app:1", mediaType: nodeimage.MediaTypeJSON, body: []byte(`{"dockerconfigjson":"c2VjcmV0"}`), want: "secret"},
		"pull without secret": {verb: http.MethodPost, parameter: nodeimage.ParamPull, value: "app:1"},
		"pull with a typo":    {verb: http.MethodPost, parameter: nodeimage.ParamPull, value: "app:1", mediaType: nodeimage.MediaTypeJSON, body: []byte(`{"config":"c2VjcmV0"}`), failed: func(err error) bool { return apierrors.IsBadRequest(err) && !strings.Contains(err.Error(), "c2V") }},
		"neither":             {verb: http.MethodPost, failed: apierrors.IsBadRequest},
		"import":              {verb: http.MethodPost, parameter: nodeimage.ParamImport, mediaType: nodeimage.MediaTypeArchive, body: large, want: "receiving\n" + sum(large)},
		"a small import":      {verb: http.MethodPost, parameter: nodeimage.ParamImport, mediaType: nodeimage.MediaTypeJSON, body: small, want: "receiving\n" + sum(small)},
		"another node":        {verb: http.MethodGet, node: "n0", failed: apierrors.IsNotFound},
		"a long reference":    {verb: http.MethodDelete, parameter: nodeimage.ParamReference, value: strings.Repeat("a", nodeimage.MaxReference+1), failed: apierrors.IsBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := "n1"
			if tc.node != "" {
				node = tc.node
			}
			var body io.Reader
			if tc.body != nil {
				body = io.MultiReader(bytes.NewReader(tc.body)) // a reader without a length
			}
			got, err := c.do(t.Context(), tc.verb, node, tc.parameter, tc.value, tc.mediaType, body)
			if tc.failed != nil {
				if !tc.failed(err) {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

// A client sees the progress of an import while it still sends.
func TestImportAnswersBeforeItsEnd(t *testing.T) {
	t.Parallel()
	s := apitest.Shared(t)
	createNode(t, s)
	in, out := io.Pipe()
	request := newImageClient(t, s.Config).client.Post().Resource("nodes").Name("n1").SubResource(nodeimage.Subresource).
		Param(nodeimage.ParamImport, "").SetHeader("Content-Type", nodeimage.MediaTypeArchive).Body(in)
	answer, err := request.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Close() }()
	line := make([]byte, len("receiving\n"))
	if _, err := io.ReadFull(answer, line); err != nil || string(line) != "receiving\n" {
		t.Fatalf("before the end of the archive the client reads %q, %v", line, err)
	}
	// A client that breaks off does not make the archive complete.
	_ = out.CloseWithError(errors.New("broken"))
	if rest, err := io.ReadAll(answer); err == nil {
		t.Errorf("an import that broke off ended well with %q", rest)
	}
}

// A tenant has no access to the images of a node, whatever its rights in its namespace are. Who may
// list images may not export them.
func TestImagesNeedTheirOwnRights(t *testing.T) {
	t.Parallel()
	n := newTenant(t)
	createNode(t, n.server)
	tenant := newImageClient(t, n.config)
	for _, request := range []struct{ verb, parameter string }{
		{http.MethodGet, ""}, {http.MethodGet, nodeimage.ParamExport}, {http.MethodPost, nodeimage.ParamPull}, {http.MethodPost, nodeimage.ParamImport}, {http.MethodDelete, nodeimage.ParamReference},
	} {
		if _, err := tenant.do(t.Context(), request.verb, "n1", request.parameter, "app:1", "", nil); !apierrors.IsForbidden(err) {
			t.Errorf("%s %s of a tenant = %v, want forbidden", request.verb, request.parameter, err)
		}
	}
	name := n.namespace + "-lister"
	rbac := n.server.Client.RbacV1()
	for verb, role := range map[string]string{"get": name, nodeimage.VerbExport: name + "-export"} {
		_, err := rbac.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{rikv1alpha1.SchemeGroupVersion.Group}, Resources: []string{"nodes/images"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	bind := func(role string) {
		_, err := rbac.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(n.server.Config)
	config.Impersonate.UserName = name
	lister := newImageClient(t, config)
	bind(name)
	poll.Until(t, apitest.Timeout, "the user may list images", func(ctx context.Context) error {
		_, err := lister.do(ctx, http.MethodGet, "n1", "", "", "", nil)
		return err
	})
	if _, err := lister.do(t.Context(), http.MethodGet, "n1", nodeimage.ParamExport, "app:1", "", nil); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `the verb "export" on nodes/images`) {
		t.Errorf("an export of a user who may list = %v, want forbidden with the verb", err)
	}
	if _, err := lister.do(t.Context(), http.MethodDelete, "n1", nodeimage.ParamReference, "app:1", "", nil); !apierrors.IsForbidden(err) {
		t.Errorf("a removal of a user who may list = %v, want forbidden", err)
	}
	bind(name + "-export")
	poll.Until(t, apitest.Timeout, "the user may export images", func(ctx context.Context) error {
		_, err := lister.do(ctx, http.MethodGet, "n1", nodeimage.ParamExport, "app:"+n.namespace, "", nil)
		return err
	})
	poll.Until(t, apitest.Timeout, "the audit log has the export", func(context.Context) error {
		if !holds(t, filepath.Join(n.server.DataDir, "audit.log"), fmt.Sprintf("/nodes/n1/images?export=app%%3A%s", n.namespace)) {
			return errors.New("no line about it")
		}
		return nil
	})
}

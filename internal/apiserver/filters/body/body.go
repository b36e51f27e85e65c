// Package body allows filters in front of the API server to read the body of a request and
// restore it.
package body

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rpc/nodeimage"
)

// Max is the API server's own limit of a request's body, in bytes.
const Max = 3 << 20

// IsStream reports whether the body of a request is not a document: an archive with images, or the
// credentials for an image.
func IsStream(info *request.RequestInfo) bool {
	return info != nil && info.APIGroup == rikv1alpha1.SchemeGroupVersion.Group && info.Resource == "nodes" && info.Subresource == nodeimage.Subresource
}

// Peek returns the body of a request and restores it, so that it can be read again. whole is
// false if the body is longer than Max, which the server refuses.
func Peek(r *http.Request) (content []byte, whole bool, err error) {
	content, err = io.ReadAll(io.LimitReader(r.Body, Max+1))
	if err != nil {
		return nil, false, apierrors.NewBadRequest(fmt.Sprintf("reading the request: %v", err))
	}
	r.Body = restored{io.MultiReader(bytes.NewReader(content), r.Body), r.Body}
	return content, len(content) <= Max, nil
}

// restored is a body that can be read again.
type restored struct {
	io.Reader
	io.Closer
}

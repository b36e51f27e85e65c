// Package body lets filters in front of the API server look at what is sent, and leaves it
// to be read.
package body

import (
	"bytes"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Max is the API server's own limit of a request's body, in bytes.
const Max = 3 << 20

// Peek returns the body of a request, which can be read again. It is not whole when it is
// longer than Max: the server refuses that.
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

package restv0

import (
	_ "embed"
	"encoding/json"
	"net/http"
)

// document describes every route. A test compares it with the served routes.
//
//go:embed openapi.json
var document []byte

func serveOpenAPI(*call) (answer, error) {
	return answer{http.StatusOK, json.RawMessage(document)}, nil
}

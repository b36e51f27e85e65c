// Package nodeimage defines the subresource nodes/NAME/images: how clients list, pull, import,
// export and remove the images of a node. The API server passes the requests to the node as
// sessions, and the node's output to the client.
//
//	GET                          List
//	GET    ?export=REFERENCE     an OCI layout in a tar archive
//	POST   ?pull=REFERENCE       lines of Event; the body is empty or a Credentials
//	POST   ?import=NAME          lines of Event; the body is the archive, and NAME may be empty
//	DELETE ?reference=REFERENCE  Removed
//
// The verbs of RBAC are get, create and delete on nodes/images. An export shows the files of an
// image, also of one that was pulled with the credentials of another user. It needs the verb export too.
package nodeimage

import "time"

// Parameters of requests.
const (
	ParamExport    = "export"
	ParamPull      = "pull"
	ParamImport    = "import"
	ParamReference = "reference"
)

// Subresource is the subresource of nodes. VerbExport is the verb of RBAC for an export.
const (
	Subresource = "images"
	VerbExport  = "export"
)

// Media types of bodies.
const (
	MediaTypeJSON    = "application/json"
	MediaTypeLines   = "application/x-ndjson"
	MediaTypeArchive = "application/x-tar"
)

// MaxCredentials limits the body of a pull, and MaxReference the length of a reference or a name.
const (
	MaxCredentials = 64 << 10
	MaxReference   = 1024
)

// Credentials is the body of a pull.
type Credentials struct {
	// DockerConfigJSON is the content of a Secret for registries.
	DockerConfigJSON []byte `json:"dockerconfigjson,omitempty"`
}

// Image is an image that a node has.
type Image struct {
	// Reference is the full name with the tag or the digest, or the place on the node.
	Reference string `json:"reference"`
	// Digest is that of the manifest, or of the index that selected it.
	Digest string `json:"digest"`
	// Bytes is the size of the unpacked layers, including those that other images share.
	Bytes    int64     `json:"bytes"`
	LastUsed time.Time `json:"lastUsed"`
	// Imported is true for an image from an archive. The node does not remove it by itself.
	Imported bool `json:"imported,omitempty"`
	// UsedBy are the instances of the node that need it, as NAMESPACE/NAME.
	UsedBy []string `json:"usedBy,omitempty"`
}

// List is the answer to a GET, sorted by reference.
type List struct {
	Items []Image `json:"items"`
}

// Event is one line of the answer to a POST. Exactly one field is set. The last line has Done.
type Event struct {
	Progress *Progress `json:"progress,omitempty"`
	// Image was pulled or imported.
	Image *Image `json:"image,omitempty"`
	// Failed is an image that was not imported. The import continues.
	Failed *Failure `json:"failed,omitempty"`
	Done   *Done    `json:"done,omitempty"`
}

// Progress is how far a pull or an import is.
type Progress struct {
	// Text is the work and its step, for people.
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`
	// Total is 0 if it is not known.
	Total int64 `json:"total,omitempty"`
}

// Failure is an image that was not imported.
type Failure struct {
	Reference string `json:"reference,omitempty"`
	Error     string `json:"error"`
}

// Done is the end of a request. Without it, the connection was lost.
type Done struct {
	// Error is empty if the request succeeded as a whole.
	Error string `json:"error,omitempty"`
}

// Removed is the answer to a DELETE.
type Removed struct {
	Reference string `json:"reference"`
	// FreedBytes is the space of the layers that no other image has.
	FreedBytes int64 `json:"freedBytes"`
}

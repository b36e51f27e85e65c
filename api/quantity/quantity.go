// Package quantity finds quantities that are too expensive to parse, in documents that are not
// decoded yet. For example, "1e-999999999" has twelve bytes, and Kubernetes' resource.ParseQuantity
// makes a number with a billion digits of it. That takes hours, and no deadline ends it.
package quantity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxExponent is far above the exponents of valid quantities, which are from 1e-9 to 9.2e18.
const maxExponent = 99

// Error is the error of a rejected quantity.
type Error struct {
	// Path is the field in the document, such as spec.containers.resources.limits.cpu. It is
	// empty if the format of the document has no names of fields.
	Path, Value string
}

func (e *Error) Error() string {
	at := ""
	if e.Path != "" {
		at = e.Path + ": "
	}
	return fmt.Sprintf("%sinvalid value: %q: the exponent of a quantity must be between -%d and %d", at, short(e.Value), maxExponent, maxExponent)
}

func short(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// CheckJSON returns an *Error for the first such quantity in a JSON document. It accepts texts with
// the form of such a quantity in fields that have no quantities: metadata, labels, selectors,
// commands, values of variables, and data. It returns no error for text that is not JSON.
func CheckJSON(document []byte) error { return checkAt(nil, document) }

// CheckPatch is CheckJSON for a JSON patch (RFC 6902).
func CheckPatch(document []byte) error {
	if !Suspicious(document) && !bytes.Contains(document, []byte(`"from"`)) {
		return nil
	}
	var operations []struct {
		Op, Path, From string
		Value          json.RawMessage
	}
	if json.Unmarshal(document, &operations) != nil {
		return nil //nolint:nilerr // the decoder reports the error
	}
	for _, o := range operations {
		path := pointer(o.Path)
		if err := checkAt(path, o.Value); err != nil {
			return err
		}
		// The source of a copied text can be any field, and its destination can be a quantity.
		if from := pointer(o.From); o.From != "" && (free(from) && !free(path) || listed(path) && !listed(from)) {
			return &Error{Path: strings.Join(path, "."), Value: o.Op + " of " + o.From}
		}
	}
	return nil
}

// pointer returns the path of a JSON pointer (RFC 6901), without the indexes of lists.
func pointer(p string) []string {
	var path []string
	for name := range strings.SplitSeq(strings.TrimPrefix(p, "/"), "/") {
		if _, err := strconv.Atoi(name); err == nil || name == "-" || name == "" {
			continue
		}
		path = append(path, strings.NewReplacer("~1", "/", "~0", "~").Replace(name))
	}
	return path
}

// checkAt checks a document at a path. It reads token by token, because a decoder decodes each
// value of a repeated key.
func checkAt(path []string, document []byte) error {
	if !Suspicious(document) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	w := walk{decoder: d, path: slices.Clone(path)}
	for d.More() {
		if err := w.value(); err != nil || w.broken {
			return err
		}
	}
	return nil
}

type walk struct {
	decoder *json.Decoder
	path    []string
	broken  bool
	depth   int
}

// maxDepth is the limit of nesting. No decoder of Go accepts more.
const maxDepth = 10_000

func (w *walk) value() error {
	token, err := w.decoder.Token()
	if err != nil {
		w.broken = true
		return nil
	}
	switch token := token.(type) {
	case json.Number:
		return w.validate(token.String())
	case string:
		return w.validate(token)
	case json.Delim:
		if w.depth++; w.depth > maxDepth {
			w.broken = true
			return nil
		}
		defer func() { w.depth-- }()
		return w.inside(token == '{')
	}
	return nil
}

func (w *walk) inside(object bool) error {
	for w.decoder.More() {
		if object {
			key, err := w.decoder.Token()
			name, ok := key.(string)
			if err != nil || !ok {
				w.broken = true
				return nil //nolint:nilerr // as above
			}
			w.path = append(w.path, name)
		}
		err := w.value()
		if err != nil || w.broken {
			return err
		}
		if object {
			w.path = w.path[:len(w.path)-1]
		}
	}
	if _, err := w.decoder.Token(); err != nil {
		w.broken = true
	}
	return nil
}

func (w *walk) validate(text string) error {
	if refused(text) && !free(w.path) {
		return &Error{Path: strings.Join(w.path, "."), Value: text}
	}
	return nil
}

// texts lists fields below which no type has quantities.
var texts = []string{
	"metadata", "labels", "annotations", "matchLabels", "matchExpressions", "nodeSelector", "selector",
	"data", "stringData", "command", "args",
}

// lists has the fields, of all served types, that contain quantities by names of resources
// (internal/apiserver/filters/quantities TestEveryQuantityIsLookedAt). A resource can have the name
// of a field in texts.
var lists = []string{
	"limits", "requests", "capacity", "allocatable", "hard", "used", "allocatedResources", "overhead", "resources",
	"consumedCapacity", "counters", "nodeAllocatableResourceMappings", "podFixed", "default", "defaultRequest", "max", "min", "maxLimitRequestRatio",
}

// free reports whether a path can have any text.
func free(path []string) bool {
	for i, name := range path {
		switch {
		case isList(name):
			return false
		case slices.Contains(texts, name), name == "env" && slices.Equal(path[i+1:], []string{"value"}):
			return true
		}
	}
	return false
}

// listed reports whether a path is a list of quantities or is in one.
func listed(path []string) bool { return !free(path) && slices.ContainsFunc(path, isList) }

// isList reports whether a field is in lists. It ignores case, like some decoders.
func isList(name string) bool {
	return slices.ContainsFunc(lists, func(list string) bool { return strings.EqualFold(list, name) })
}

// CheckProtobuf is CheckJSON for a document in Kubernetes' protobuf, where a quantity is a message
// with one text.
func CheckProtobuf(document []byte) error {
	if !suspicious(document) {
		return nil
	}
	return checkMessage(bytes.TrimPrefix(document, []byte("k8s\x00")), 0)
}

// checkMessage checks each field that can be a message, because it does not know the types.
func checkMessage(message []byte, depth int) error {
	fields, only := 0, ""
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		fields++
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return nil
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return nil
		}
		message = message[n:]
		if number == 1 {
			only = string(value)
		}
		if depth < protobufDepth && suspicious(value) {
			if err := checkMessage(value, depth+1); err != nil {
				return err
			}
		}
	}
	if fields == 1 && refused(only) {
		return &Error{Value: only}
	}
	return nil
}

// protobufDepth limits the nesting, and so the work. No type is nested as deeply.
const protobufDepth = 64

// Suspicious reports whether a document of text may contain such a quantity. It is fast, and false
// for most documents.
func Suspicious(document []byte) bool {
	// An escape sequence can be any character.
	return bytes.IndexByte(document, '\\') >= 0 || suspicious(document)
}

// suspicious reports whether a document contains text in the form of a large exponent.
func suspicious(document []byte) bool {
	for i, c := range document {
		if (c == 'e' || c == 'E') && i > 0 && (digit(document[i-1]) || document[i-1] == '.') {
			rest := document[i+1:]
			if len(rest) > 0 && (rest[0] == '-' || rest[0] == '+') {
				rest = rest[1:]
			}
			if len(rest) > 2 && digit(rest[0]) && digit(rest[1]) && digit(rest[2]) {
				return true
			}
		}
	}
	return false
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// refused reports whether a text is a number with an exponent that is out of range.
func refused(text string) bool {
	text = strings.TrimSpace(text)
	i := strings.IndexAny(text, "eE")
	if i < 1 || strings.Trim(text[:i], "+-.0123456789") != "" {
		return false
	}
	exponent, err := strconv.ParseInt(text[i+1:], 10, 64)
	if err != nil {
		// The exponent has more than 64 bits, or is not a number.
		return strings.TrimLeft(text[i+1:], "+-0123456789") == "" && len(text) > i+1
	}
	return exponent < -maxExponent || exponent > maxExponent
}

// Package quantity finds quantities that nobody can compute with: "1e-999999999" is
// eleven bytes, and Kubernetes' resource.ParseQuantity makes a number of a billion digits
// of it, which takes hours that no deadline ends. It is for documents that were not
// decoded yet.
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

// maxExponent is far beyond what a quantity can be, which is 1e-9 to 9.2e18.
const maxExponent = 99

// Error is a quantity that is refused.
type Error struct {
	// Path is the field in the document, such as spec.containers.resources.limits.cpu;
	// empty when the document does not tell.
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

// CheckJSON returns an *Error for the first such quantity in a JSON document. Texts that
// have the form of one are let pass where none belongs: in metadata, labels and
// selectors, commands, the values of variables, and data. What is no JSON is no error.
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
		return nil //nolint:nilerr // whoever decodes it says what is wrong
	}
	for _, o := range operations {
		path := pointer(o.Path)
		if err := checkAt(path, o.Value); err != nil {
			return err
		}
		// A text may be anything where it is, and a quantity where it is put.
		if from := pointer(o.From); o.From != "" && (free(from) && !free(path) || listed(path) && !listed(from)) {
			return &Error{Path: strings.Join(path, "."), Value: o.Op + " of " + o.From}
		}
	}
	return nil
}

// pointer is the path of a JSON pointer (RFC 6901), without the indexes of lists.
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

// checkAt reads token by token: a key that comes twice is decoded twice.
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

// maxDepth is more than any decoder of Go takes.
const maxDepth = 10_000

func (w *walk) value() error {
	token, err := w.decoder.Token()
	if err != nil {
		w.broken = true
		return nil //nolint:nilerr // whoever decodes it says what is wrong
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

// texts are fields below which there are no quantities, whatever the type.
var texts = []string{
	"metadata", "labels", "annotations", "matchLabels", "matchExpressions", "nodeSelector", "selector",
	"data", "stringData", "command", "args",
}

// lists are the fields that hold quantities by names of resources, of all types that are
// served (internal/apiserver/filters/quantities TestEveryQuantityIsLookedAt). A resource may be
// called as a field of texts is.
var lists = []string{
	"limits", "requests", "capacity", "allocatable", "hard", "used", "allocatedResources", "overhead", "resources",
	"consumedCapacity", "counters", "nodeAllocatableResourceMappings", "podFixed", "default", "defaultRequest", "max", "min", "maxLimitRequestRatio",
}

// free says whether any text may stand at a path.
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

// listed says whether what stands at a path is, or is in, a list of quantities.
func listed(path []string) bool { return !free(path) && slices.ContainsFunc(path, isList) }

// isList takes a field for another that differs in case, as some decoders do.
func isList(name string) bool {
	return slices.ContainsFunc(lists, func(list string) bool { return strings.EqualFold(list, name) })
}

// CheckProtobuf is CheckJSON for a document in Kubernetes' protobuf, where a quantity is a
// message of one text.
func CheckProtobuf(document []byte) error {
	if !suspicious(document) {
		return nil
	}
	return checkMessage(bytes.TrimPrefix(document, []byte("k8s\x00")), 0)
}

// checkMessage takes every field that could be a message for one: the types are not known.
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

// protobufDepth is more than any type nests, and bounds the work.
const protobufDepth = 64

// Suspicious says whether such a quantity may be in a document of text. It is quick, and
// most documents are not.
func Suspicious(document []byte) bool {
	// An escape can stand for any character.
	return bytes.IndexByte(document, '\\') >= 0 || suspicious(document)
}

// suspicious says whether anything in a document has the form of a large exponent.
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

// refused says whether a text is a number with an exponent that is out of bounds.
func refused(text string) bool {
	text = strings.TrimSpace(text)
	i := strings.IndexAny(text, "eE")
	if i < 1 || strings.Trim(text[:i], "+-.0123456789") != "" {
		return false
	}
	exponent, err := strconv.ParseInt(text[i+1:], 10, 64)
	if err != nil {
		// Out of the range of 64 bits, or no number at all.
		return strings.TrimLeft(text[i+1:], "+-0123456789") == "" && len(text) > i+1
	}
	return exponent < -maxExponent || exponent > maxExponent
}

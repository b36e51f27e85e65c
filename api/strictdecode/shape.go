// Package strictdecode compares documents with the Go types into which they will be decoded. A
// decoder stops at the first value that does not fit, and its message names Go types. This package
// reports each such value, with its path in the document and the expected form.
package strictdecode

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Document is the field of an error about the document as a whole.
const Document = "document"

// Check returns an error for each value in a JSON document that cannot be decoded into the type of
// into, in the order of the keys. The decoder reports unknown and repeated keys, and text that is
// not JSON.
func Check(document []byte, into any) field.ErrorList {
	value, err := decode(document)
	if err != nil {
		return nil
	}
	return check(nil, value, reflect.TypeOf(into))
}

// Join joins the errors of a list, with one line for each. errors.As finds each of them. Join
// returns nil for an empty list.
func Join(list field.ErrorList) error {
	errs := make([]error, len(list))
	for i, err := range list {
		errs[i] = err
	}
	return errors.Join(errs...)
}

// CheckAt is Check for a value that will be put into a part of into. A JSON pointer (RFC 6901)
// names the part. CheckAt returns no errors for a part that does not exist.
func CheckAt(pointer string, value []byte, into any) field.ErrorList {
	decoded, err := decode(value)
	if err != nil {
		return nil
	}
	path, t := follow(pointer, reflect.TypeOf(into))
	if t == nil {
		return nil
	}
	return check(path, decoded, t)
}

// decode decodes a document. It keeps the notation of numbers.
func decode(document []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the document")
	}
	return value, nil
}

func check(path *field.Path, value any, t reflect.Type) field.ErrorList {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if value == nil { // null changes nothing
		return nil
	}
	if decodesItself(t) {
		return checkOwn(path, value, t)
	}
	switch t.Kind() {
	case reflect.Struct:
		return checkStruct(path, value, t)
	case reflect.Map:
		return checkMap(path, value, t)
	case reflect.Slice, reflect.Array:
		return checkList(path, value, t)
	case reflect.Interface:
		return nil
	default:
		return checkScalar(path, value, t)
	}
}

func checkStruct(path *field.Path, value any, t reflect.Type) field.ErrorList {
	object, ok := value.(map[string]any)
	if !ok {
		return misfit(path, value, "must be an object: keys with values")
	}
	var errs field.ErrorList
	for _, key := range sortedKeys(object) {
		if inner := fieldOf(t, key); inner != nil {
			errs = append(errs, check(child(path, key), object[key], inner)...)
		}
	}
	return errs
}

func checkMap(path *field.Path, value any, t reflect.Type) field.ErrorList {
	object, ok := value.(map[string]any)
	if !ok {
		return misfit(path, value, "must be an object: keys with values")
	}
	var errs field.ErrorList
	for _, key := range sortedKeys(object) {
		if !strings.HasPrefix(key, "$") { // a key with "$" is a directive of a patch
			errs = append(errs, check(child(path, key), object[key], t.Elem())...)
		}
	}
	return errs
}

func checkList(path *field.Path, value any, t reflect.Type) field.ErrorList {
	list, ok := value.([]any)
	if t.Elem().Kind() == reflect.Uint8 {
		var data []byte
		if fits(value, &data) {
			return nil
		}
		return misfit(path, value, "must be text in base64")
	}
	if !ok {
		return misfit(path, value, "must be a list")
	}
	var errs field.ErrorList
	for i, item := range list {
		errs = append(errs, check(index(path, i), item, t.Elem())...)
	}
	return errs
}

func checkScalar(path *field.Path, value any, t reflect.Type) field.ErrorList {
	if fits(value, reflect.New(t).Interface()) {
		return nil
	}
	switch t.Kind() {
	case reflect.String:
		return misfit(path, value, "must be text"+quoted(value))
	case reflect.Bool:
		return misfit(path, value, "must be true or false")
	case reflect.Float32, reflect.Float64:
		return misfit(path, value, "must be a number")
	default:
		return misfit(path, value, "must be a whole number"+bounds(t))
	}
}

// quoted returns how to write a value as text that YAML reads as something else. The original
// notation of a fraction or of true is not known any more: 1.10 has become 1.1, and yes has become
// true.
func quoted(value any) string {
	switch v := value.(type) {
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return ": put it in quotes, as it is written"
		}
		return fmt.Sprintf(": put it in quotes, \"%v\"", value)
	case bool:
		return ": put it in quotes, as it is written"
	default:
		return ""
	}
}

func bounds(t reflect.Type) string {
	switch bits := t.Bits(); t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		least := int64(-1) << (bits - 1)
		return fmt.Sprintf(" from %d to %d", least, -(least + 1))
	default:
		return fmt.Sprintf(" from 0 to %d", ^uint64(0)>>(64-bits))
	}
}

var (
	jsonDecoder = reflect.TypeFor[json.Unmarshaler]()
	textDecoder = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func decodesItself(t reflect.Type) bool {
	pointer := reflect.PointerTo(t)
	return pointer.Implements(jsonDecoder) || pointer.Implements(textDecoder)
}

// checkOwn checks a value for a type that decodes itself. A document may have the only element of
// such a list in place of the list. checkOwn then checks the element.
func checkOwn(path *field.Path, value any, t reflect.Type) field.ErrorList {
	if fits(value, reflect.New(t).Interface()) {
		return nil
	}
	if t.Kind() == reflect.Slice {
		var inside field.ErrorList
		switch value.(type) {
		case map[string]any:
			inside = check(path, value, t.Elem())
		case []any:
			inside = checkList(path, value, t)
		}
		if len(inside) > 0 {
			return inside
		}
	}
	return misfit(path, value, expected(t))
}

// expected describes the values that a type accepts which decodes itself.
func expected(t reflect.Type) string {
	switch t.Name() {
	case "Quantity":
		return "must be a quantity: a number with or without a unit, such as 500m, 2, 64Mi or 1Gi"
	case "IntOrString":
		return `must be a whole number, or a percentage such as "25%"`
	case "Time", "MicroTime":
		return "must be a time such as 2006-01-02T15:04:05Z"
	case "Duration":
		return "must be a duration such as 30s or 5m"
	case "Ports":
		return "must be an object, or a list of objects"
	default:
		return "does not have the form that is expected here"
	}
}

// fits reports whether a value can be decoded into a type.
func fits(value, into any) bool {
	data, err := json.Marshal(value)
	return err == nil && json.Unmarshal(data, into) == nil
}

// fieldOf returns the type of the field of a struct that has a key in documents, or nil.
func fieldOf(t reflect.Type, key string) reflect.Type {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
		case name == key:
			return f.Type
		case name == "" && f.Anonymous:
			if inner := embedded(f.Type); inner != nil {
				if found := fieldOf(inner, key); found != nil {
					return found
				}
			}
		case name == "" && f.Name == key:
			return f.Type
		}
	}
	return nil
}

func embedded(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	return t
}

// follow returns the path and the type of the part that a JSON pointer names. The type is nil if
// the part does not exist.
func follow(pointer string, t reflect.Type) (*field.Path, reflect.Type) {
	var path *field.Path
	if pointer == "" {
		return nil, t
	}
	for token := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		token = strings.NewReplacer("~1", "/", "~0", "~").Replace(token)
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch t.Kind() {
		case reflect.Struct:
			path, t = child(path, token), fieldOf(t, token)
		case reflect.Map:
			path, t = child(path, token), t.Elem()
		case reflect.Slice:
			n, err := strconv.Atoi(token)
			if err != nil { // "-" is the place after the last element
				path, t = path.Key(token), t.Elem()
				continue
			}
			path, t = index(path, n), t.Elem()
		default:
			return nil, nil
		}
		if t == nil {
			return nil, nil
		}
	}
	return path, t
}

// child appends a key to a path, with a dot if possible and otherwise in brackets.
func child(path *field.Path, key string) *field.Path {
	switch {
	case path == nil:
		return field.NewPath(key)
	case strings.ContainsAny(key, "./[] "):
		return path.Key(key)
	default:
		return path.Child(key)
	}
}

func index(path *field.Path, i int) *field.Path {
	if path == nil {
		path = field.NewPath(Document)
	}
	return path.Index(i)
}

func misfit(path *field.Path, value any, must string) field.ErrorList {
	if path == nil {
		path = field.NewPath(Document)
	}
	return field.ErrorList{field.TypeInvalid(path, shortened(value), must)}
}

// longest is the maximum length of a value in a message, in characters.
const longest = 60

// shortened returns the value, or the beginning of its text if it is too long.
func shortened(value any) any {
	text, ok := value.(string)
	if !ok {
		data, err := json.Marshal(value)
		if err != nil || len(data) <= longest {
			return value
		}
		text = string(data)
	}
	if runes := []rune(text); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return text
}

func sortedKeys(object map[string]any) []string {
	keys := make([]string, 0, len(object))
	for key := range object {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

package strict

import (
	"bytes"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// tooLong finds the lists with more items than allowed. It reads tokens and stores none of
// them.
func (t types) tooLong(body []byte, mediaType string) field.ErrorList {
	if len(t.lists) == 0 {
		return nil
	}
	if mediaType != mediaJSONPatch {
		return t.longIn(nil, "", body)
	}
	var operations []struct {
		Path  string          `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if json.Unmarshal(body, &operations) != nil {
		return nil
	}
	var errs field.ErrorList
	for _, o := range operations {
		var at *field.Path
		last := ""
		for _, key := range strings.Split(strings.TrimPrefix(o.Path, "/"), "/") {
			at, last = child(at, key), key
		}
		errs = append(errs, t.longIn(at, last, o.Value)...)
	}
	return errs
}

func child(at *field.Path, key string) *field.Path {
	if at == nil {
		return field.NewPath(key)
	}
	return at.Child(key)
}

// longIn checks a document at a path whose last key is given.
func (t types) longIn(at *field.Path, key string, document []byte) field.ErrorList {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var errs field.ErrorList
	// The server's decoder, which runs later, reports invalid JSON.
	_ = t.walk(decoder, at, key, &errs)
	return errs
}

func (t types) walk(decoder *json.Decoder, at *field.Path, key string, errs *field.ErrorList) error {
	token, err := decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		return t.walkObject(decoder, at, errs)
	case json.Delim('['):
		return t.walkList(decoder, at, key, errs)
	default:
		return nil
	}
}

func (t types) walkObject(decoder *json.Decoder, at *field.Path, errs *field.ErrorList) error {
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string) // the decoder accepts only strings as keys
		if err := t.walk(decoder, child(at, key), key, errs); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}

func (t types) walkList(decoder *json.Decoder, at *field.Path, key string, errs *field.ErrorList) error {
	n := 0
	for ; decoder.More(); n++ {
		item := at
		if at != nil {
			item = at.Index(n)
		}
		if err := t.walk(decoder, item, "", errs); err != nil {
			return err
		}
	}
	if most, bounded := t.lists[key]; bounded && n > most {
		*errs = append(*errs, field.TooMany(at, n, most))
	}
	_, err := decoder.Token()
	return err
}

package v0

import (
	"encoding/json"
	"errors"
	"fmt"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/api/strictdecode"
)

// Matches reports whether a JSON or YAML document is a published workload definition. It is false
// for an object of rik.dev. A definition has the version v0 or v1, and the kind Pod or Function.
// Its name is at the top, not under metadata.
func Matches(document []byte) bool {
	var head struct {
		APIVersion string          `json:"apiVersion"`
		Kind       Kind            `json:"kind"`
		Name       *string         `json:"name"`
		Metadata   json.RawMessage `json:"metadata"`
	}
	data, err := toJSON(document)
	if err != nil || json.Unmarshal(data, &head) != nil {
		return false
	}
	published := head.APIVersion == APIVersion0 || head.APIVersion == APIVersion1
	known := head.Kind == KindPod || head.Kind == KindFunction
	return published && known && (head.Name != nil || head.Metadata == nil)
}

// Decode decodes one definition in JSON or YAML. It returns an error for each value of a wrong
// type, with its path. If all types are right, it returns an error for each unknown or repeated
// key.
func Decode(document []byte) (*Definition, error) {
	data, err := toJSON(document)
	if err != nil {
		return nil, fmt.Errorf("decoding workload definition: %w", err)
	}
	var d Definition
	if err := strictdecode.Join(strictdecode.Check(data, &d)); err != nil {
		return nil, fmt.Errorf("decoding workload definition: %w", err)
	}
	problems, err := kjson.UnmarshalStrict(data, &d)
	if err != nil {
		return nil, fmt.Errorf("decoding workload definition: %w", err)
	}
	problems = append(problems, portProblems(data)...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("decoding workload definition: %w", errors.Join(problems...))
	}
	return &d, nil
}

// toJSON converts YAML to JSON. It returns JSON unchanged, because the YAML decoder rejects control
// characters that JSON strings may contain.
func toJSON(document []byte) ([]byte, error) {
	if json.Valid(document) {
		return document, nil
	}
	return yaml.YAMLToJSONStrict(document)
}

// portProblems returns errors for unknown keys in spec.containers[*].ports. The strict decoder does
// not find them, because Ports decodes itself.
func portProblems(data []byte) []error {
	var raw struct {
		Spec struct {
			Containers []struct {
				Ports json.RawMessage `json:"ports"`
			} `json:"containers"`
		} `json:"spec"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &raw); err != nil {
		return []error{err}
	}
	var problems []error
	for i, c := range raw.Spec.Containers {
		problems = append(problems, strictPorts(c.Ports, fmt.Sprintf("spec.containers[%d].ports", i))...)
	}
	return problems
}

func strictPorts(data json.RawMessage, path string) []error {
	if len(data) == 0 {
		return nil
	}
	if isObject(data) {
		return strictPort(data, path)
	}
	var list []json.RawMessage
	if err := json.Unmarshal(data, &list); err != nil {
		return []error{fmt.Errorf("%s: %w", path, err)}
	}
	var problems []error
	for i, item := range list {
		problems = append(problems, strictPort(item, fmt.Sprintf("%s[%d]", path, i))...)
	}
	return problems
}

func strictPort(data json.RawMessage, path string) []error {
	var port Port
	problems, err := kjson.UnmarshalStrict(data, &port)
	if err != nil {
		problems = append(problems, err)
	}
	for i, problem := range problems {
		var strict kjson.FieldError
		if errors.As(problem, &strict) {
			strict.SetFieldPath(path + "." + strict.FieldPath())
			continue
		}
		problems[i] = fmt.Errorf("%s: %w", path, problem)
	}
	return problems
}

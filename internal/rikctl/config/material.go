package config

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// pemMark begins every PEM block.
const pemMark = "-----BEGIN "

// material returns PEM that is given directly, in base64, or as a path.
func (s Source) material(value, dir, field string) ([]byte, error) {
	switch {
	case value == "":
		return nil, nil
	case strings.Contains(value, pemMark):
		return []byte(value), nil
	}
	// Base64 is tried first: no path decodes to PEM, so this is unambiguous.
	if decoded, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(value), "")); err == nil &&
		strings.Contains(string(decoded), pemMark) {
		return decoded, nil
	}
	data, err := s.ReadFile(s.resolve(value, dir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	if !strings.Contains(string(data), pemMark) {
		return nil, fmt.Errorf("%s: %s contains no PEM", field, s.resolve(value, dir))
	}
	return data, nil
}

func (s Source) token(value, dir string) (string, error) {
	for _, prefix := range []string{"/", "./", "../", "~/"} {
		if !strings.HasPrefix(value, prefix) {
			continue
		}
		data, err := s.ReadFile(s.resolve(value, dir))
		if err != nil {
			return "", fmt.Errorf("cluster.token: %w", err)
		}
		return strings.TrimSpace(string(data)), nil
	}
	return value, nil
}

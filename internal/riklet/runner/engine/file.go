package engine

import (
	"encoding/json"
	"os"
)

// ReadJSON reads a file that WriteJSON wrote.
func ReadJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}

// WriteJSON writes a value to a file that only root can read.
func WriteJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// ReadOr returns the content of a file, or another text if the file cannot be read.
func ReadOr(path, otherwise string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return otherwise
	}
	return string(data)
}

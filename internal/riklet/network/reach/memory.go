package reach

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"rik.dev/rik/internal/atomicfile"
)

// memory is the state that survives a restart of the riklet.
type memory struct {
	// Checked is true if the check succeeded once. Before that, the node waits for an answer, so
	// that a node that cannot be reached gets no work when it joins.
	Checked bool
	// Trouble is the last trouble, or "" for none.
	Trouble string
}

// remembered returns the state that was saved at a path. initial is the trouble of a node that has
// just started.
func remembered(path, initial string, log *slog.Logger) memory {
	var m memory
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Warn("cannot read the last result of a network check; checking again", "path", path, "err", err)
		m = memory{}
	}
	if !m.Checked && m.Trouble == "" {
		m.Trouble = initial
	}
	return m
}

func (m memory) save(path string, log *slog.Logger) {
	data, err := json.Marshal(m)
	if err == nil {
		err = atomicfile.Write(path, data)
	}
	if err != nil {
		log.Warn("cannot save the result of a network check", "path", path, "err", err)
	}
}

// next returns the state after a check. While the result is not known yet, the state does not
// change.
func (m memory) next(s state, message string) memory {
	switch {
	case s == fine || s == idle:
		return memory{Checked: true}
	case s == waiting && (m.Checked || m.Trouble != "" && m.Trouble != unchecked):
		return m
	}
	return memory{Checked: m.Checked, Trouble: message}
}

// Last returns the trouble that a checker has saved at a path, or "" for none. checked is false if
// there is no result.
func Last(path string) (trouble string, checked bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	var m memory
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return "", false, fmt.Errorf("reading the last result of a network check: %w", err)
	}
	return m.Trouble, m.Checked || m.Trouble != "", nil
}

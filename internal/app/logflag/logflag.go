// Package logflag has the flags for the log of a program.
package logflag

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// The formats. Text is for people, on a terminal or in a journal. JSON is for other programs.
const (
	Text = "text"
	JSON = "json"
)

// Flags are the values of the flags.
type Flags struct{ Level, Format string }

// Add adds the flags.
func (f *Flags) Add(s *pflag.FlagSet) {
	f.AddLevel(s)
	s.StringVar(&f.Format, "log-format", Text, "log format: text or json")
}

// AddLevel adds only the flag for the level. The format is Text.
func (f *Flags) AddLevel(s *pflag.FlagSet) {
	f.Format = Text
	s.StringVar(&f.Level, "log-level", "info", "log level: debug, info, warn or error")
}

// Logger returns the logger that the flags describe.
func (f *Flags) Logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.Level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", f.Level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch f.Format {
	case Text:
		return slog.New(slog.NewTextHandler(out, options)), nil
	case JSON:
		return slog.New(slog.NewJSONHandler(out, options)), nil
	default:
		return nil, fmt.Errorf("--log-format %q: use text or json", f.Format)
	}
}

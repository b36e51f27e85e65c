package multicluster

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logging contains the log flags of a long-running command.
type logging struct{ level, format string }

func (l *logging) addFlags(s *pflag.FlagSet) {
	s.StringVar(&l.level, "log-level", "info", "log level: debug, info, warn or error")
	s.StringVar(&l.format, "log-format", "text", "log format: text or json")
}

func (l *logging) logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", l.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(out, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(out, options)), nil
	default:
		return nil, fmt.Errorf("--log-format %q: use text or json", l.format)
	}
}

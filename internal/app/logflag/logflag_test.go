package logflag

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestLogger(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"":                                    "level=WARN msg=later\n",
		"--log-level=debug":                   "msg=first",
		"--log-level=error":                   "",
		"--log-format=json":                   `"msg":"later"`,
		"--log-level=loud":                    `--log-level "loud": use debug`,
		"--log-format=xml":                    `--log-format "xml": use text or json`,
		"--log-level=debug --log-format=json": `"msg":"first"`,
	} {
		var f Flags
		s := pflag.NewFlagSet("test", pflag.ContinueOnError)
		f.Add(s)
		if err := s.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log, err := f.Logger(&out)
		if err != nil {
			out.WriteString(err.Error())
		} else {
			log.Debug("first")
			log.Warn("later")
		}
		if got := out.String(); !strings.Contains(got, want) || want == "" && got != "" || line == "" && strings.Contains(got, "first") {
			t.Errorf("with %q the output is %q, want %q", line, got, want)
		}
	}
}

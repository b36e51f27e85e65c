package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// These mistakes were reported only after the whole cluster had started.
func TestValidateReportsMistakesOfTheNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"a long name":            {func(o *Options) { o.NodeName = strings.Repeat("n", 64) }, "no more than 63 characters, and has 64"},
		"a name":                 {func(o *Options) { o.NodeName = "Bad_Name!" }, `--node-name "Bad_Name!"`},
		"a label":                {func(o *Options) { o.Labels = map[string]string{"a b": "c"} }, `--node-label: label "a b"`},
		"a label's value":        {func(o *Options) { o.Labels = map[string]string{"a": "b c"} }, `--node-label: value of label "a"`},
		"a taint's form":         {func(o *Options) { o.Taints = []string{"a"} }, `--node-taint "a"`},
		"a taint's effect":       {func(o *Options) { o.Taints = []string{"a=b:Foo"} }, `--node-taint: taint "a=b:Foo"`},
		"a negative number":      {func(o *Options) { o.MaxInstances = -1 }, "--max-instances"},
		"an address":             {func(o *Options) { o.Address = "here" }, "--node-address"},
		"an external address":    {func(o *Options) { o.ExternalAddress = "there" }, "--node-external-address"},
		"an unknown resource":    {func(o *Options) { o.Reserved = map[string]string{"foo": "1"} }, "--reserved foo=1"},
		"all processors":         {func(o *Options) { o.Reserved = map[string]string{"cpu": "100000"} }, "--reserved cpu=100k leaves nothing"},
		"a runtime of that name": {func(o *Options) { o.Runtimes = map[string]string{"runc": "/bin/sh"} }, "--runtime runc=/bin/sh"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			tc.change(&o)
			if err := o.Validate(); !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Validate() = %v, want a wrong usage with the text %q", err, tc.says)
			}
		})
	}
}

// Missing files were reported only by the first instance that needed them.
func TestMissingFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		o    Options
		says string // empty: no problem
	}{
		"none named":             {Options{}, ""},
		"all there":              {Options{Runtimes: map[string]string{"sh": "/bin/sh"}, RegistriesConf: file, CertDir: dir}, ""},
		"nothing in it":          {Options{RegistriesConf: os.DevNull}, ""},
		"a runtime":              {Options{Runtimes: map[string]string{"foo": "/nonexist"}}, "--runtime foo=/nonexist: the file does not exist"},
		"a runtime's name":       {Options{Runtimes: map[string]string{"F o": "/bin/sh"}}, `"F o" is not a name`},
		"a configuration":        {Options{RegistriesConf: "/nonexist"}, "--registries-conf /nonexist: the file or directory does not exist"},
		"a directory as one":     {Options{RegistriesConf: dir}, "is a directory"},
		"certificates":           {Options{CertDir: "/nonexist"}, "--registries-certs /nonexist: the file or directory does not exist"},
		"certificates in a file": {Options{CertDir: file}, "is not a directory"},
	} {
		err := errors.Join(append(tc.o.validateRuntimes(), tc.o.validateRegistries()...)...)
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

package launch

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func plain() Process { return Process{Argv: []string{"a"}, UID: 1, GID: 1} }

// lookupIn is os.LookupEnv for an environment.
func lookupIn(env []string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for _, v := range env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

func TestEnvironRoundTrip(t *testing.T) {
	t.Parallel()
	long := plain()
	long.Env = []string{"A=" + strings.Repeat("ä\"\n", 150_000)}
	all := Process{
		Argv: []string{"sh", "-c", "x=\x01"}, Env: []string{"A=b=c", "E="}, Dir: "/d", UID: 1, GID: 2, Groups: []uint32{3}, Cgroups: []string{"/c"},
		KeepCapabilities: true, OpenFiles: 4, OOMScoreAdj: -5, NamespacesOf: 6,
	}
	for name, p := range map[string]Process{"Plain": plain(), "Long": long, "Every": all} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := Environ(p)
			for _, v := range env {
				if len(v) >= 128<<10 || strings.ContainsRune(v, 0) {
					t.Errorf("the kernel takes no variable of %d bytes: %.40q", len(v), v)
				}
			}
			got, err := parse(lookupIn(env))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(p, got); diff != "" {
				t.Errorf("parse(Environ(p)) (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	root := plain()
	root.UID = 0
	for name, tc := range map[string]struct {
		env  []string
		says string
	}{
		"Nothing":   {nil, "do not start it yourself"},
		"NoJSON":    {[]string{"RIK_LAUNCH_0=x"}, "do not start it yourself"},
		"Truncated": {[]string{`RIK_LAUNCH_0={"argv":["a"`}, "do not start it yourself"},
		"Invalid":   {Environ(root), "user 0"},
	} {
		if _, err := parse(lookupIn(tc.env)); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: parse() = %v, want %q", name, err, tc.says)
		}
	}
}

// Validate reports all errors at once.
func TestValidateReportsAll(t *testing.T) {
	t.Parallel()
	p := Process{Env: []string{"x", "a\x00=b"}, Groups: []uint32{noID}, UID: 1, GID: 1, NamespacesOf: -1}
	err := p.Validate()
	if err == nil {
		t.Fatal("Validate() = nil")
	}
	for _, want := range []string{"command is empty", `"x" in the environment`, "NUL byte", "not an ID", "-1 is not a process"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, which does not contain %q", err, want)
		}
	}
	p = plain()
	p.UID, p.GID, p.Root = 0, 0, true
	if err := p.Validate(); err != nil {
		t.Errorf("Validate() of root that was asked for = %v", err)
	}
}

func TestFailureRoundTrip(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]*Failure{
		"Program": {Code: CodeNotFound, Errno: syscall.ENOENT, Text: "there is no \"x\"\n"},
		"Other":   {Code: CodeFailed, Text: "a reason"},
	} {
		var buf bytes.Buffer
		if err := f.write(&buf); err != nil {
			t.Fatal(err)
		}
		var got *Failure
		if err := ReadFailure(&buf); !errors.As(err, &got) || *got != *f {
			t.Errorf("%s: ReadFailure() = %+v, want %+v", name, err, f)
		}
		if f.Errno != 0 && !errors.Is(got, f.Errno) {
			t.Errorf("%s: %v is not %v", name, got, f.Errno)
		}
	}
	var buf bytes.Buffer
	long := &Failure{Code: CodeFailed, Text: strings.Repeat("\x01", 1<<20)}
	if err := long.write(&buf); err != nil {
		t.Fatal(err)
	}
	var got *Failure
	if err := ReadFailure(&buf); !errors.As(err, &got) || got.Text == "" {
		t.Errorf("ReadFailure() of a long one = %v", err)
	}
}

func TestReadFailureOfInvalidInput(t *testing.T) {
	t.Parallel()
	if err := ReadFailure(strings.NewReader("")); err != nil {
		t.Errorf("ReadFailure() of nothing = %v", err)
	}
	for _, text := range []string{"panic: x", "{}", `{"text":1}`, strings.Repeat("x", 1<<20)} {
		if err := ReadFailure(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "cannot be read") || len(err.Error()) > 4*maxFailure {
			t.Errorf("ReadFailure(%.20q) = %.100v", text, err)
		}
	}
	if err := ReadFailure(io.MultiReader(strings.NewReader("x"), badReader{})); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("ReadFailure() of a broken pipe = %v", err)
	}
}

type badReader struct{}

func (badReader) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestPathOf(t *testing.T) {
	t.Parallel()
	for want, env := range map[string][]string{
		"/a:/b": {"X=1", "PATH=/a:/b", "PATH=/c"}, "": {"PATH="}, defaultPath: {"XPATH=/a"},
	} {
		if got := pathOf(env); got != want {
			t.Errorf("pathOf(%q) = %q, want %q", env, got, want)
		}
	}
}

func TestEnterErrorNamesTheNextStep(t *testing.T) {
	t.Parallel()
	for err, helps := range map[error]bool{syscall.EACCES: true, syscall.ENOENT: false, syscall.ENOTDIR: false} {
		got := enterError("/srv/app", 4711, err)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), "/srv/app as user 4711") || strings.Contains(got.Error(), "chmod o+x") != helps {
			t.Errorf("enterError(%v) = %v, want a next step: %v", err, got, helps)
		}
	}
}

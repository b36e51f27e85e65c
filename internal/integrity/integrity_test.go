package integrity_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"rik.dev/rik/internal/integrity"
)

func TestReport(t *testing.T) {
	t.Parallel()
	var r integrity.Report
	r.Add("/a", "keys", "", nil)
	if err := r.Err(); err != nil {
		t.Errorf("Err() = %v without problems", err)
	}
	r.Add("/b", "objects", "3 objects", errors.New("two lines\nand \x1b[31mred"))
	var problems *integrity.ProblemsError
	if err := r.Err(); !errors.As(err, &problems) || problems.Count != 1 {
		t.Errorf("Err() = %v, want one problem", err)
	}
	var text strings.Builder
	if err := r.Print(&text, false); err != nil {
		t.Fatal(err)
	}
	want := "RESULT   CONTENT              PATH\n" +
		"ok       keys                 /a\n" +
		"problem  objects (3 objects)  /b\n\n" +
		"/b: two lines and  [31mred\n"
	if got := text.String(); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") || strings.Contains(got, "\x1b") {
		t.Errorf("Print() = %q, want %q", got, want)
	}
	text.Reset()
	if err := r.Print(&text, true); err != nil {
		t.Fatal(err)
	}
	var back integrity.Report
	if err := json.Unmarshal([]byte(text.String()), &back); err != nil || len(back.Results) != 2 || back.Results[1] != r.Results[1] {
		t.Errorf("the JSON is %s, %v", text.String(), err)
	}
}

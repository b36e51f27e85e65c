package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStepsThatTakeLongAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		s := newSteps(nil, log)
		s.begin("the datastore")
		time.Sleep(12 * time.Second)
		s.begin("the API server")
		time.Sleep(stepShown / 2)
		s.begin("the controller")
		time.Sleep(2 * time.Second)
		s.ready("the API answers")
		time.Sleep(time.Minute)
		got := strings.Split(strings.TrimSpace(out.String()), "\n")
		want := []string{
			`level=INFO msg="the start takes time" waitingFor="the datastore" for=1s`,
			`level=INFO msg="the start takes time" waitingFor="the datastore" for=6s`,
			`level=INFO msg="the start takes time" waitingFor="the datastore" for=11s`,
			`level=INFO msg="the start takes time" waitingFor="the controller" for=1s`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log of a start (-want +got):\n%s", diff)
		}
	})
}

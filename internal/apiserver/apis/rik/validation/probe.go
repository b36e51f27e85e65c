package validation

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
)

func probes(at *field.Path, c *rik.Container) field.ErrorList {
	errs := probe(at.Child("livenessProbe"), c.LivenessProbe, true)
	errs = append(errs, probe(at.Child("readinessProbe"), c.ReadinessProbe, false)...)
	return append(errs, probe(at.Child("startupProbe"), c.StartupProbe, true)...)
}

// probe validates one probe. With once, its success threshold must be 1, because a failure restarts
// the container and further successes have no effect.
func probe(at *field.Path, p *rik.Probe, once bool) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	asks := 0
	if p.Exec != nil {
		asks++
		here := at.Child("exec")
		if len(p.Exec.Command) == 0 {
			errs = append(errs, field.Required(here.Child("command"), ""))
		}
		errs = append(errs, command(here, p.Exec.Command, nil)...)
	}
	if p.TCP != nil {
		asks++
		errs = append(errs, messages(at.Child("tcp", "port"), p.TCP.Port, validation.IsValidPortNum(int(p.TCP.Port)))...)
	}
	if p.HTTP != nil {
		asks++
		errs = append(errs, httpProbe(at.Child("http"), p.HTTP)...)
	}
	if asks != 1 {
		errs = append(errs, field.Invalid(at, asks, "exactly one of exec, tcp and http must be set"))
	}
	errs = append(errs, within(at.Child("initialDelaySeconds"), p.InitialDelaySeconds, 0, MaxProbeSeconds)...)
	errs = append(errs, within(at.Child("periodSeconds"), p.PeriodSeconds, 1, MaxProbeSeconds)...)
	errs = append(errs, within(at.Child("timeoutSeconds"), p.TimeoutSeconds, 1, MaxProbeSeconds)...)
	errs = append(errs, within(at.Child("failureThreshold"), p.FailureThreshold, 1, MaxProbeThreshold)...)
	if once && p.SuccessThreshold != 1 {
		return append(errs, field.Invalid(at.Child("successThreshold"), p.SuccessThreshold, "must be 1 for liveness and startup probes"))
	}
	return append(errs, within(at.Child("successThreshold"), p.SuccessThreshold, 1, MaxProbeThreshold)...)
}

func httpProbe(at *field.Path, h *rik.HTTPProbe) field.ErrorList {
	errs := messages(at.Child("port"), h.Port, validation.IsValidPortNum(int(h.Port)))
	errs = append(errs, among(at.Child("scheme"), h.Scheme, "HTTP", "HTTPS")...)
	if !strings.HasPrefix(h.Path, "/") || len(h.Path) > MaxPathBytes || strings.ContainsFunc(h.Path, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		errs = append(errs, field.Invalid(at.Child("path"), h.Path, fmt.Sprintf("must begin with a slash, without spaces and control characters, in at most %d bytes", MaxPathBytes)))
	}
	errs = append(errs, atMost(at.Child("headers"), len(h.Headers), MaxHeaders)...)
	names := make([]string, 0, len(h.Headers))
	for name := range h.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		value := h.Headers[name]
		if !httpguts.ValidHeaderFieldName(name) {
			errs = append(errs, field.Invalid(at.Child("headers").Key(name), name, "is not a valid name of an HTTP header"))
		}
		if len(value) > MaxPathBytes || !httpguts.ValidHeaderFieldValue(value) {
			errs = append(errs, field.Invalid(at.Child("headers").Key(name), "", "is not a valid value of an HTTP header"))
		}
	}
	return errs
}

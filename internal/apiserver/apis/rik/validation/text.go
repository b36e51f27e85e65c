package validation

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// messages turns the messages of a check into errors about a value.
func messages(at *field.Path, value any, found []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range found {
		errs = append(errs, field.Invalid(at, value, m))
	}
	return errs
}

func label(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return messages(at, value, validation.IsDNS1123Label(value))
}

func subdomain(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return messages(at, value, validation.IsDNS1123Subdomain(value))
}

func qualified(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return messages(at, value, validation.IsQualifiedName(value))
}

// among requires one of the known values of a field.
func among[T ~string](at *field.Path, value T, known ...T) field.ErrorList {
	if slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(at, value, known)}
}

// within requires a number from low to high, including both.
func within[T int32 | int64](at *field.Path, value, low, high T) field.ErrorList {
	if value >= low && value <= high {
		return nil
	}
	return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("must be between %d and %d", low, high))}
}

func atMost(at *field.Path, count, most int) field.ErrorList {
	if count <= most {
		return nil
	}
	return field.ErrorList{field.TooMany(at, count, most)}
}

// unsupported rejects a field that would have no effect.
func unsupported(at *field.Path, set bool, why string) field.ErrorList {
	if !set {
		return nil
	}
	return field.ErrorList{field.Forbidden(at, why)}
}

// plain rejects text with a NUL byte, which ends a C string, and text that is not valid UTF-8.
func plain(at *field.Path, value string) field.ErrorList {
	switch {
	case !utf8.ValidString(value):
		return field.ErrorList{field.Invalid(at, "", "must be valid UTF-8")}
	case strings.ContainsRune(value, 0):
		return field.ErrorList{field.Invalid(at, "", "must not contain a NUL byte")}
	}
	return nil
}

// filePath requires a path that stays below the directory to which it is joined.
func filePath(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(value) > MaxPathBytes {
		return field.ErrorList{field.TooLong(at, "", MaxPathBytes)}
	}
	if !utf8.ValidString(value) {
		return field.ErrorList{field.Invalid(at, "", "must be valid UTF-8")}
	}
	for _, r := range value {
		if r < ' ' || r == 0x7f {
			return field.ErrorList{field.Invalid(at, strconv.Quote(value), "must not contain control characters")}
		}
	}
	for part := range strings.SplitSeq(value, "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(at, value, `must not contain ".."`)}
		}
	}
	if clean := path.Clean(value); clean != value {
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("must be written as %q", clean))}
	}
	return nil
}

func absolutePath(at *field.Path, value string) field.ErrorList {
	if errs := filePath(at, value); len(errs) > 0 {
		return errs
	}
	if !path.IsAbs(value) {
		return field.ErrorList{field.Invalid(at, value, "must be an absolute path")}
	}
	return nil
}

func relativePath(at *field.Path, value string) field.ErrorList {
	if errs := filePath(at, value); len(errs) > 0 {
		return errs
	}
	if path.IsAbs(value) {
		return field.ErrorList{field.Invalid(at, value, "must be a relative path")}
	}
	if value == "." {
		return field.ErrorList{field.Invalid(at, value, "must name a file or directory")}
	}
	return nil
}

var userPart = regexp.MustCompile(`^(?:[0-9]{1,10}|[a-z_][a-z0-9_.-]{0,31}\$?)$`)

// user requires a name or a uid, with an optional :group.
func user(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return nil
	}
	name, group, hasGroup := strings.Cut(value, ":")
	parts := []string{name}
	if hasGroup {
		parts = append(parts, group)
	}
	for _, p := range parts {
		if !userPart.MatchString(p) {
			return field.ErrorList{field.Invalid(at, value, `must be the name or ID of a user, optionally with ":" and the name or ID of a group`)}
		}
		// The kernel's ids have 32 bits, and the highest id means "none". Container runtimes
		// accept 31 bits.
		if n, err := strconv.ParseUint(p, 10, 64); err == nil && n > 1<<31-1 {
			return field.ErrorList{field.Invalid(at, value, "a number must be at most 2147483647")}
		}
	}
	return nil
}

// share requires a number of instances or a percentage of them.
func share(at *field.Path, value *intstr.IntOrString, mostPercent int) field.ErrorList {
	if value == nil {
		return nil
	}
	switch value.Type {
	case intstr.Int:
		return within(at, value.IntVal, 0, MaxReplicas)
	case intstr.String:
		if errs := messages(at, value.StrVal, validation.IsValidPercent(value.StrVal)); len(errs) > 0 {
			return errs
		}
		percent, err := strconv.Atoi(strings.TrimSuffix(value.StrVal, "%"))
		if err != nil || percent > mostPercent {
			return field.ErrorList{field.Invalid(at, value.StrVal, fmt.Sprintf("must be at most %d%%", mostPercent))}
		}
		return nil
	default:
		return field.ErrorList{field.Invalid(at, "", "must be a number or a percentage")}
	}
}

func shareIsZero(value *intstr.IntOrString) bool {
	if value == nil {
		return false
	}
	if value.Type == intstr.Int {
		return value.IntVal == 0
	}
	return strings.Trim(strings.TrimSuffix(value.StrVal, "%"), "0") == ""
}

// sorted sorts errors by their paths, so that a repeated request gets the same answer.
func sorted(errs field.ErrorList) field.ErrorList {
	slices.SortStableFunc(errs, func(a, b *field.Error) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Detail, b.Detail))
	})
	return errs
}

// seen is a set of values that must be unique.
type seen map[string]bool

func (s seen) add(at *field.Path, value string) field.ErrorList {
	if s[value] {
		return field.ErrorList{field.Duplicate(at, value)}
	}
	s[value] = true
	return nil
}

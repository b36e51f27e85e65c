package nodestate

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxNodeName is the maximum length of a node's name, because the name is also the value of a
// label.
const MaxNodeName = validation.LabelValueMaxLength

// NodeNameProblems returns the problems of a node's name. It returns none for a valid name.
func NodeNameProblems(name string) []string {
	problems := validation.IsDNS1123Subdomain(name)
	if len(name) > MaxNodeName {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters, and has %d", MaxNodeName, len(name)))
	}
	return problems
}

// NodeName converts a host name to a name for a node. The result may still have problems.
func NodeName(host string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(host))
	return strings.Trim(name, "-.")
}

package nodestate

import (
	"fmt"

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

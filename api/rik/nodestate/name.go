package nodestate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxNodeName is the longest name of a node: it becomes the value of a label.
const MaxNodeName = validation.LabelValueMaxLength

// NodeNameProblems says what is wrong with the name of a node; nothing if it is valid.
func NodeNameProblems(name string) []string {
	problems := validation.IsDNS1123Subdomain(name)
	if len(name) > MaxNodeName {
		problems = append(problems, fmt.Sprintf("must be no more than %d characters, and has %d", MaxNodeName, len(name)))
	}
	return problems
}

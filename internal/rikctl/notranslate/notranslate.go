// Package notranslate has kubectl's commands speak the language of rikctl's own.
//
// Left to themselves they translate some of their texts as the locale says, so that a
// user would read two languages; and they pack and read their translations at every
// start of the program, which is a third of what a start takes.
package notranslate

import "k8s.io/kubectl/pkg/util/i18n"

// Err is what came of it: it is not nil where a package asked for a translation before
// this one was initialized, and then they are read as ever.
//
// Packages are initialized in the order of their import paths, each after those that it
// imports (https://go.dev/ref/spec#Package_initialization). kubectl's commands import some
// of sigs.k8s.io, whose turn comes after this one's; what this one imports does not.
var Err = i18n.SetLoadTranslationsFunc(func() error { return nil })

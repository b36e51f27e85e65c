// Package notranslate turns off the translations of kubectl's commands.
//
// With them, some texts would follow the user's locale, so that a user would read two languages.
// Unpacking and reading the translations also takes a third of each start of the program.
package notranslate

import "k8s.io/kubectl/pkg/util/i18n"

// Err is not nil if a package requested a translation before this one was initialized. The
// translations are then loaded as usual.
//
// Go initializes packages in the order of their import paths, each after those that it imports
// (https://go.dev/ref/spec#Package_initialization). kubectl's commands import packages of
// sigs.k8s.io, which come after this one. This package imports none of those.
var Err = i18n.SetLoadTranslationsFunc(func() error { return nil })

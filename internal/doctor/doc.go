// Package doctor decides what is wrong with a machine on which rik runs or shall run.
//
// Each check is a pure function of a [Machine]. Package facts gathers the machine's facts; this
// package reads no file and no clock. A check returns at least one [Finding], also if all is well,
// so that a script can distinguish a good result from a check that did not run.
//
// The IDs of findings, the areas, the severities and the JSON fields of a [Report] are an API.
package doctor

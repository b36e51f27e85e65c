// Package debug has the command debug. It collects what a bug report needs, without secrets; see
// package redact.
package debug

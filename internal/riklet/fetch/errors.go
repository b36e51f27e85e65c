package fetch

import (
	"errors"
	"fmt"
	"net/http"
)

var (
	// ErrRefused is returned for a URL, a redirect or an address that is not allowed.
	ErrRefused = errors.New("the URL is refused")
	// ErrTooLarge is returned if the file exceeds its size limit.
	ErrTooLarge = errors.New("the download is too large")
	// ErrDigest is returned if the file does not match its checksum.
	ErrDigest = errors.New("the checksum of the download does not match")
	// ErrLength is returned if the length of the file differs from the announced one.
	ErrLength = errors.New("the length of the download does not match")
	// ErrStalled is returned if no data arrived for the stall timeout.
	ErrStalled = errors.New("the download makes no progress")
	// ErrTimeout is returned if a download exceeded its time limit.
	ErrTimeout = errors.New("the download took too long")
	// ErrStatus is returned for an answer without the file; see StatusError.
	ErrStatus = errors.New("the server did not send the file")
	// ErrNoSpace is returned if the file system has no space left above the reserve.
	ErrNoSpace = errors.New("no space left for the download")
)

// StatusError is an answer without the file.
type StatusError struct{ Code int }

func (e *StatusError) Error() string {
	text := http.StatusText(e.Code)
	if text == "" {
		text = "an unknown status"
	}
	return fmt.Sprintf("%s: it answered %d (%s)%s", ErrStatus, e.Code, text, e.hint())
}

func (e *StatusError) hint() string {
	switch {
	case e.Code == http.StatusUnauthorized || e.Code == http.StatusForbidden:
		return "; check the credentials in the URL"
	case e.NotFound():
		return "; check the URL"
	case e.Temporary():
		return "; it may succeed later"
	}
	return ""
}

// Unwrap returns ErrStatus.
func (e *StatusError) Unwrap() error { return ErrStatus }

// NotFound reports that the server has no such file.
func (e *StatusError) NotFound() bool {
	return e.Code == http.StatusNotFound || e.Code == http.StatusGone
}

// Temporary reports that a later request may succeed.
func (e *StatusError) Temporary() bool {
	return e.Code >= 500 || e.Code == http.StatusTooManyRequests || e.Code == http.StatusRequestTimeout
}

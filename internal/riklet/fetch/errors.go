package fetch

import (
	"errors"
	"fmt"
	"net/http"
)

var (
	// ErrRefused is returned for a URL, a redirect or an address that is not allowed.
	ErrRefused = errors.New("the URL is refused")
	// ErrTooLarge is returned when the file has more bytes than it may.
	ErrTooLarge = errors.New("the download is too large")
	// ErrDigest is returned when the file is not the one that its checksum names.
	ErrDigest = errors.New("the download has another checksum")
	// ErrLength is returned when the server ends before, or after, what it announced.
	ErrLength = errors.New("the download is not as long as announced")
	// ErrStalled is returned when nothing came for as long as a download may stand still.
	ErrStalled = errors.New("the download stands still")
	// ErrTimeout is returned when a download took longer than it may.
	ErrTimeout = errors.New("the download takes too long")
	// ErrStatus is returned for an answer other than the file; see StatusError.
	ErrStatus = errors.New("the server did not give the file")
	// ErrNoSpace is returned when the file system is full, up to what must stay free.
	ErrNoSpace = errors.New("no space left for the download")
)

// StatusError is an answer other than the file.
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
		return "; it may do so later"
	}
	return ""
}

// Unwrap makes it an ErrStatus.
func (e *StatusError) Unwrap() error { return ErrStatus }

// NotFound tells that the server has no such file.
func (e *StatusError) NotFound() bool {
	return e.Code == http.StatusNotFound || e.Code == http.StatusGone
}

// Temporary tells that the server may have the file another time.
func (e *StatusError) Temporary() bool {
	return e.Code >= 500 || e.Code == http.StatusTooManyRequests || e.Code == http.StatusRequestTimeout
}

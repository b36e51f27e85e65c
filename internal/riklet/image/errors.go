package image

import (
	"errors"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Errors of Open.
var (
	// ErrInvalidConfig: a field of Config is invalid.
	ErrInvalidConfig = errors.New("invalid image store configuration")
	// ErrLocked: another Store, perhaps in another process, uses the directory.
	ErrLocked = errors.New("image store in use")
	// ErrUnfitFileSystem: the file system of the store cannot hold the files that containers
	// write.
	ErrUnfitFileSystem = errors.New("unsuitable file system")
)

// Errors of Pull. Their messages name the layer, the path in it, or the field.
var (
	// ErrNotPresent: the policy is Never and the node does not have the image, or the registry,
	// layout or archive does not have it. Mount returns it if a layer was removed since the
	// pull.
	ErrNotPresent = wire.ErrNotPresent
	// ErrInvalidReference: the reference is malformed.
	ErrInvalidReference = wire.ErrInvalidReference
	// ErrTooLarge: a limit on bytes or entries was exceeded.
	ErrTooLarge = wire.ErrTooLarge
	// ErrRefused: the content is malformed or tries to leave the image, or the registry is at an
	// address, or redirects to one, that the node does not connect to.
	ErrRefused = wire.ErrRefused
	// ErrDigest: a blob is damaged, truncated or does not match its digest.
	ErrDigest = wire.ErrDigest
	// ErrPlatform: the image is for another architecture or system.
	ErrPlatform = wire.ErrPlatform
	// ErrUnsupported: the media type cannot be unpacked.
	ErrUnsupported = wire.ErrUnsupported
	// ErrUnauthorized: the registry refused the credentials, or requires some.
	ErrUnauthorized = wire.ErrUnauthorized
	// ErrNoSpace: the file system has no space left above Limits.ReserveBytes.
	ErrNoSpace = wire.ErrNoSpace
	// ErrStalled: the registry sent nothing for Limits.Stall.
	ErrStalled = wire.ErrStalled
	// ErrTimeout: Limits.Time has passed.
	ErrTimeout = wire.ErrTimeout
)

// Errors of Import and Remove.
var (
	// ErrUnnamed: the archive does not name an image fully, and the request has no name for it.
	ErrUnnamed = errors.New("image without a name")
	// ErrInUse: a mount uses the image.
	ErrInUse = errors.New("image in use")
)

// Errors of Mount and Unmount.
var (
	// ErrInvalidID: the name of a mount is not one plain path component.
	ErrInvalidID = errors.New("invalid mount name")
	// ErrMounted: the mount with that name has another image.
	ErrMounted = errors.New("mounted with a different image")
)

package image

import (
	"errors"

	"rik.dev/rik/internal/riklet/image/internal/wire"
)

// Reasons of Open.
var (
	// ErrInvalidConfig: a field of Config cannot be used.
	ErrInvalidConfig = errors.New("invalid image store configuration")
	// ErrLocked: another Store, perhaps in another process, has the directory.
	ErrLocked = errors.New("image store in use")
	// ErrUnfitFileSystem: what containers write cannot be kept where the store lies.
	ErrUnfitFileSystem = errors.New("unfit file system")
)

// Reasons of Pull. Their errors name the layer, the path in it, or the field.
var (
	// ErrNotPresent: the policy is Never and the node does not have the image;
	// or its registry, layout or archive does not have it. Mount returns it
	// when a layer was collected since the pull.
	ErrNotPresent = wire.ErrNotPresent
	// ErrInvalidReference: the reference is malformed.
	ErrInvalidReference = wire.ErrInvalidReference
	// ErrTooLarge: a limit on bytes or entries was reached.
	ErrTooLarge = wire.ErrTooLarge
	// ErrRefused: the content is malformed, or tries to get out of the image; or the
	// registry is, or leads to, where the node does not go.
	ErrRefused = wire.ErrRefused
	// ErrDigest: a blob is damaged, cut short or not the one announced.
	ErrDigest = wire.ErrDigest
	// ErrPlatform: the image is for another architecture or system.
	ErrPlatform = wire.ErrPlatform
	// ErrUnsupported: a media type that cannot be unpacked.
	ErrUnsupported = wire.ErrUnsupported
	// ErrUnauthorized: the registry refused the credentials, or wants some.
	ErrUnauthorized = wire.ErrUnauthorized
	// ErrNoSpace: the file system is full, up to Limits.ReserveBytes.
	ErrNoSpace = wire.ErrNoSpace
	// ErrStalled: the registry sent nothing for Limits.Stall.
	ErrStalled = wire.ErrStalled
	// ErrTimeout: Limits.Time was over.
	ErrTimeout = wire.ErrTimeout
)

// Reasons of Mount and Unmount.
var (
	// ErrInvalidID: the name of a mount is not one plain path component.
	ErrInvalidID = errors.New("invalid mount name")
	// ErrMounted: the mount of that name has another image.
	ErrMounted = errors.New("mounted with another image")
)

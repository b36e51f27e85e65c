package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
)

// The parts of an ext4 superblock that decide whether a kernel can mount it read-only:
// https://www.kernel.org/doc/html/latest/filesystems/ext4/globals.html#super-block
const (
	superblockAt   = 1024
	superblockSize = 1024

	magic       = 0xef53
	stateValid  = 1
	stateErrors = 2
	rev0InodeSz = 128

	incompatRecover    = 0x4
	incompatJournalDev = 0x8
	incompat64Bit      = 0x80
	// The features of Linux 6.1: filetype, recover, meta_bg, extents, 64bit, mmp, flex_bg,
	// ea_inode, csum_seed, largedir, inline_data, encrypt and casefold.
	incompatKnown = 0x2 | incompatRecover | 0x10 | 0x40 | incompat64Bit | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000 | 0x8000 | 0x10000 | 0x20000

	roCompatMetadataCsum = 0x400
)

// superblock has the parsed fields.
type superblock struct {
	blocks, freeBlocks, reserved   uint64
	inodes, inodesPerGroup         uint32
	blocksPerGroup, firstData      uint32
	blockSize                      int64
	inodeSize                      uint16
	magic, state                   uint16
	incompat, roCompat             uint32
	checksum, wantChecksum, logBlk uint32
}

// validateFile validates the superblock of an ext4 image that is not trusted. Other errors
// affect only the guest that mounts it, because it is the guest's own file system.
func validateFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading the ext4 image: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading the ext4 image: %w", err)
	}
	raw := make([]byte, superblockSize)
	if _, err := f.ReadAt(raw, superblockAt); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%w: the ext4 image has %d bytes, which is less than its superblock needs", ErrRefused, info.Size())
		}
		return fmt.Errorf("reading the ext4 image: %w", err)
	}
	sb := parse(raw)
	if err := sb.validate(info.Size()); err != nil {
		return fmt.Errorf("%w: the ext4 image %w", ErrRefused, err)
	}
	// Block devices end at a sector boundary.
	if over := info.Size() % blockSize; over != 0 {
		if err := os.Truncate(path, info.Size()+blockSize-over); err != nil {
			return fmt.Errorf("finishing the block image: %w", classify(err))
		}
	}
	return nil
}

func parse(raw []byte) superblock {
	le := binary.LittleEndian
	sb := superblock{
		inodes: le.Uint32(raw[0x0:]), blocks: uint64(le.Uint32(raw[0x4:])), reserved: uint64(le.Uint32(raw[0x8:])), freeBlocks: uint64(le.Uint32(raw[0xc:])),
		firstData: le.Uint32(raw[0x14:]), logBlk: le.Uint32(raw[0x18:]), blocksPerGroup: le.Uint32(raw[0x20:]), inodesPerGroup: le.Uint32(raw[0x28:]),
		magic: le.Uint16(raw[0x38:]), state: le.Uint16(raw[0x3a:]), inodeSize: le.Uint16(raw[0x58:]),
		incompat: le.Uint32(raw[0x60:]), roCompat: le.Uint32(raw[0x64:]),
		checksum: le.Uint32(raw[0x3fc:]),
		// The checksum is crc32c that starts with all ones, without the final inversion.
		wantChecksum: ^crc32.Checksum(raw[:0x3fc], crc32.MakeTable(crc32.Castagnoli)),
	}
	if sb.incompat&incompat64Bit != 0 {
		sb.blocks |= uint64(le.Uint32(raw[0x150:])) << 32
		sb.reserved |= uint64(le.Uint32(raw[0x154:])) << 32
		sb.freeBlocks |= uint64(le.Uint32(raw[0x158:])) << 32
	}
	if le.Uint32(raw[0x4c:]) == 0 { // the first revision had no field for it
		sb.inodeSize = rev0InodeSz
	}
	if sb.logBlk <= 6 {
		sb.blockSize = 1024 << sb.logBlk
	}
	return sb
}

// validate returns an error about an image of the given size, as the end of a sentence.
func (sb superblock) validate(size int64) error {
	switch {
	case sb.magic != magic:
		return fmt.Errorf("has the magic number %#x instead of %#x", sb.magic, magic)
	case sb.roCompat&roCompatMetadataCsum != 0 && sb.checksum != sb.wantChecksum:
		return errors.New("has a damaged superblock: its checksum is wrong")
	case !slices.Contains([]int64{1024, 2048, 4096}, sb.blockSize):
		return errors.New("has blocks of a size other than 1, 2 or 4 KiB, which guests cannot mount")
	case sb.incompat&incompatJournalDev != 0:
		return errors.New("is an external journal, not a file system")
	case sb.incompat&^uint32(incompatKnown) != 0:
		return fmt.Errorf("has features that guests do not support (%#x)", sb.incompat&^uint32(incompatKnown))
	case sb.incompat&incompatRecover != 0:
		return errors.New("was not unmounted: its journal must be replayed; run e2fsck -f on it and upload it again")
	case sb.state&stateErrors != 0 || sb.state&stateValid == 0:
		return errors.New("was not unmounted, or has errors; run e2fsck -f on it and upload it again")
	}
	return sb.validateGeometry(size)
}

func (sb superblock) validateGeometry(size int64) error {
	have := uint64(size / sb.blockSize)
	bits := uint32(8 * sb.blockSize)
	switch {
	case sb.blocks == 0 || sb.inodes == 0:
		return errors.New("has no blocks or no inodes")
	case sb.blocks > have:
		return fmt.Errorf("is too short for its superblock: %d blocks of %d bytes do not fit into the %d bytes of the file", sb.blocks, sb.blockSize, have)
	case sb.freeBlocks > sb.blocks || sb.reserved > sb.blocks || uint64(sb.firstData) >= sb.blocks:
		return errors.New("has impossible numbers of blocks")
	case sb.blocksPerGroup == 0 || sb.blocksPerGroup > bits || sb.inodesPerGroup == 0 || sb.inodesPerGroup > bits:
		return errors.New("has groups of an impossible size")
	case sb.inodeSize < rev0InodeSz || int64(sb.inodeSize) > sb.blockSize || sb.inodeSize&(sb.inodeSize-1) != 0:
		return fmt.Errorf("has inodes of an impossible size, %d bytes", sb.inodeSize)
	case (sb.blocks-uint64(sb.firstData)+uint64(sb.blocksPerGroup)-1)/uint64(sb.blocksPerGroup)*uint64(sb.inodesPerGroup) != uint64(sb.inodes):
		return errors.New("has a number of inodes that does not match its groups")
	}
	return nil
}

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestUnsigned(t *testing.T) {
	t.Parallel()
	const header = "\x00\x00\x02\x00\x00\x00\x00\x00"
	signature := strings.Repeat("s", 256)
	for name, tc := range map[string]struct{ module, want string }{
		"signed":             {"module" + signature + header + "\x00\x00\x01\x00" + signed, "module"},
		"not signed":         {"module", "module"},
		"nothing":            {"", ""},
		"no header":          {signed, signed},
		"a longer signature": {"module" + header + "\x00\x00\x01\x00" + signed, "module" + header + "\x00\x00\x01\x00" + signed},
		"a huge signature":   {"module" + header + "\xff\xff\xff\xff" + signed, "module" + header + "\xff\xff\xff\xff" + signed},
	} {
		if got := string(unsigned([]byte(tc.module))); got != tc.want {
			t.Errorf("%s: unsigned() = %.40q, want %.40q", name, got, tc.want)
		}
	}
}

// module returns an ELF file that has only a .modinfo section with its dependencies.
func module(t *testing.T, path, depends string) {
	t.Helper()
	names := "\x00.shstrtab\x00.modinfo\x00"
	info := "license=GPL\x00depends=" + depends + "\x00"
	var b bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	const headers, sections = 64, 3
	put(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: headers, Ehsize: headers, Shentsize: 64, Shnum: sections, Shstrndx: 1,
	})
	at := uint64(headers + sections*64)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_STRTAB), Off: at, Size: uint64(len(names))})
	put(elf.Section64{Name: 11, Type: uint32(elf.SHT_PROGBITS), Off: at + uint64(len(names)), Size: uint64(len(info))})
	b.WriteString(names + info)
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestModulesComeAfterTheirNeeds tests the order of modules with dependencies.
func TestModulesComeAfterTheirNeeds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, depends := range map[string]string{
		"virtio.ko": "virtio_ring", "virtio_ring.ko": "", "virtio-rng.ko": "rng-core,virtio", "rng_core.ko": "",
		"circle.ko": "ring", "ring.ko": "circle", "unwanted.ko": "virtio",
	} {
		module(t, filepath.Join(dir, name), depends)
	}
	paths, err := sorted(dir, []string{"drivers/virtio.ko", "drivers/virtio_ring.ko", "drivers/builtin.ko", "drivers/virtio-rng.ko", "circle.ko"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range paths {
		got = append(got, filepath.Base(p))
	}
	if want := []string{"virtio_ring.ko", "virtio.ko", "rng_core.ko", "virtio-rng.ko", "ring.ko", "circle.ko"}; !slices.Equal(got, want) {
		t.Errorf("sorted() = %v, want %v", got, want)
	}
	if paths, err := sorted("", modules); err != nil || len(paths) != 0 {
		t.Errorf("without modules: %v, %v", paths, err)
	}
}

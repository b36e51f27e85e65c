package main

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// programOf is the shortest static program of an architecture: the header of ELF.
func programOf(arch string) []byte {
	header := make([]byte, 64)
	copy(header, "\x7fELF\x02\x01\x01")
	binary.LittleEndian.PutUint16(header[16:], 2) // ET_EXEC
	binary.LittleEndian.PutUint16(header[18:], uint16(machines[arch]))
	binary.LittleEndian.PutUint32(header[20:], 1)  // EV_CURRENT
	binary.LittleEndian.PutUint16(header[52:], 64) // the size of the header
	binary.LittleEndian.PutUint16(header[54:], 56) // and of the others, of which it has none
	binary.LittleEndian.PutUint16(header[58:], 64)
	return header
}

// newPlatform writes the programs and the packages of an architecture.
func newPlatform(t *testing.T, arch string) platform {
	t.Helper()
	p := platform{arch, filepath.Join(t.TempDir(), "programs"), filepath.Join(t.TempDir(), "root")}
	for _, name := range []string{"rik", "rikctl", "riklet", "rik-shim", "rik-unpack", "rik-dns", "runc", "hello"} {
		write(t, filepath.Join(p.programs, name), programOf(arch))
	}
	extensions := "usr/lib/" + triplets[arch] + "/xtables/"
	owners := ""
	for name, content := range map[string][]byte{
		"usr/sbin/xtables-nft-multi":                       programOf(arch),
		"usr/sbin/xtables-legacy-multi":                    programOf(arch),
		extensions + "libxt_comment.so":                    programOf(arch),
		extensions + "libipt_REJECT.so":                    programOf(arch),
		"usr/share/doc/iptables/copyright":                 []byte("GPL-2"),
		"usr/share/doc/libc6/copyright":                    []byte("LGPL-2.1"),
		"usr/share/ca-certificates/mozilla/Authority.crt":  []byte("first\n"),
		"usr/share/ca-certificates/mozilla/Other_Root.crt": []byte("second"),
		"usr/share/doc/ca-certificates/copyright":          []byte("MPL-2.0"),
	} {
		write(t, filepath.Join(p.root, name), content)
		owner := "iptables"
		if strings.Contains(name, "ca-certificates") {
			owner = "ca-certificates"
		}
		owners += owner + " ./" + name + "\n"
	}
	write(t, filepath.Join(p.root, ownersFile), []byte(owners))
	write(t, filepath.Join(p.root, packagesFile), []byte("libc6 2.36 x sha256:1\niptables 1.8.9 x sha256:2\nca-certificates 2025 all sha256:3\n"))
	return p
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestFilesOfPackages(t *testing.T) {
	t.Parallel()
	p := newPlatform(t, "arm64")
	license := filepath.Join(p.root, packagesFile)
	node, err := riklet(p, license)
	if err != nil {
		t.Fatal(err)
	}
	files := node.Layers[0].Files
	if got := string(files["etc/ssl/certs/ca-certificates.crt"].Content); got != "first\nsecond\n" {
		t.Errorf("the certificate authorities are %q", got)
	}
	// The image has no file of libc6.
	if diff := cmp.Diff("ca-certificates 2025 all sha256:3\niptables 1.8.9 x sha256:2\n", string(files["usr/share/doc/rik/packages"].Content)); diff != "" {
		t.Errorf("packages of riklet (-want +got):\n%s", diff)
	}
	for name, link := range map[string]string{"usr/sbin/iptables-restore": "xtables-nft-multi", "usr/sbin/iptables-legacy-save": "xtables-legacy-multi"} {
		if got := files[name].Link; got != link {
			t.Errorf("%s links to %q, want %q", name, got, link)
		}
	}
	server, err := rik(p, license)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := server.Layers[0].Files["usr/sbin/iptables"]; ok || server.User == "" {
		t.Errorf("the image of the server has iptables: %t, and the user %q", ok, server.User)
	}
	// Each shared volume must get the same owner, whichever container is the first.
	if diff := cmp.Diff(server.Layers[1].Files[tokenDir], node.Layers[1].Files[tokenDir]); diff != "" {
		t.Errorf("the directory of the token differs (-server +node):\n%s", diff)
	}
}

func TestForeignAndMissingFilesAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(t *testing.T, p platform)
		want   string
	}{
		"architecture": {func(t *testing.T, p platform) {
			t.Helper()
			write(t, filepath.Join(p.programs, "runc"), programOf("arm64"))
		}, "EM_AARCH64"},
		"certificates": {func(t *testing.T, p platform) {
			t.Helper()
			if err := os.RemoveAll(filepath.Join(p.root, "usr/share/ca-certificates")); err != nil {
				t.Fatal(err)
			}
		}, "ca-certificates is missing"},
		"library": {func(t *testing.T, p platform) {
			t.Helper()
			shell, err := os.ReadFile("/bin/sh")
			if err != nil || !bytes.Contains(shell, []byte("/ld-linux-x86-64.so")) {
				t.Skip("/bin/sh is not a program of amd64 with libraries")
			}
			write(t, filepath.Join(p.programs, "runc"), shell)
		}, "has no library"},
		"owner": {func(t *testing.T, p platform) {
			t.Helper()
			write(t, filepath.Join(p.root, "usr/lib", triplets["amd64"], "xtables/libxt_other.so"), programOf("amd64"))
		}, "no package has the file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlatform(t, "amd64")
			tc.change(t, p)
			_, err := riklet(p, filepath.Join(p.root, packagesFile))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("riklet() = %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestTwoRunsAreEqual(t *testing.T) {
	t.Parallel()
	var results []map[string]string
	amd64, arm64 := newPlatform(t, "amd64"), newPlatform(t, "arm64")
	for range 2 {
		o := options{out: t.TempDir(), tags: []string{"v1", "latest"}, license: filepath.Join(amd64.root, packagesFile), layout: true}
		if err := run(o, []string{"amd64=" + amd64.programs + ":" + amd64.root, "arm64=" + arm64.programs + ":" + arm64.root}); err != nil {
			t.Fatal(err)
		}
		results = append(results, tree(t, o.out))
	}
	if diff := cmp.Diff(results[0], results[1]); diff != "" {
		t.Errorf("the second run differs (-first +second):\n%s", diff)
	}
	for _, name := range []string{"rik-amd64.tar", "riklet-arm64.tar", "oci/index.json", "archives/hello.tar"} {
		if results[0][name] == "" {
			t.Errorf("the images have no file %s", name)
		}
	}
	if index := results[0]["oci/index.json"]; !strings.Contains(index, `"riklet-v1"`) || !strings.Contains(index, `"rik-latest"`) {
		t.Errorf("the layout does not have all tags: %s", index)
	}
}

// tree returns the files below dir.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestTagAndArguments(t *testing.T) {
	t.Parallel()
	if got := tag("v0.1.0+dirty,latest"); got != "v0.1.0-dirty,latest" {
		t.Errorf("tag() = %q", got)
	}
	for _, bad := range []string{"amd64", "amd64=programs", "riscv64=a:b"} {
		if p, err := parse(bad); err == nil {
			t.Errorf("parse(%q) = %v, want an error", bad, p)
		}
	}
}

// Command images builds the container images of rik from its programs, without a container engine.
//
//	go run ./hack/images -tags v1.2.3,latest -out bin/images amd64=PROGRAMS:ROOT arm64=PROGRAMS:ROOT
//
// PROGRAMS is a directory with rik's programs of an architecture. ROOT is a directory with unpacked
// Debian packages of that architecture, as hack/images.sh makes it. For each architecture it writes the images rik and riklet as
// archives of "docker save". It also writes both as one OCI layout, and the image hello of the
// sample application as an archive that nodes read. Each of these is for all architectures.
//
// The images depend only on the programs, on the packages and on the version.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"rik.dev/rik/internal/ociimage"
)

// registry is the first part of the names of the images. Nothing is pulled from there: a full name
// keeps engines from looking for the images in a registry of their own.
const registry = "rik.dev/"

// helloName is the name of the sample application's image in its archive.
const helloName = registry + "hello:v1"

// layoutDir is the OCI layout, in the directory of the images.
const layoutDir = "oci"

func main() {
	log.SetFlags(0)
	tags := flag.String("tags", "latest", "tags of the images, separated by commas; the first one is the version")
	out := flag.String("out", "", "directory of the images")
	withLayout := flag.Bool("layout", true, "write the OCI layout, which takes most of the time")
	license := flag.String("license", "LICENSE", "license of rik, for the images")
	flag.Parse()
	if *out == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(options{*out, strings.Split(tag(*tags), ","), *license, *withLayout}, flag.Args()); err != nil {
		log.Fatal(err)
	}
}

type options struct {
	out     string
	tags    []string // the first one is the version
	license string
	layout  bool
}

// tag converts versions to valid tags of images.
func tag(version string) string {
	return strings.Map(func(r rune) rune {
		if r == '+' || r == '/' || r == '~' {
			return '-'
		}
		return r
	}, version)
}

// platform is one architecture and the directories with its files.
type platform struct{ arch, programs, root string }

func parse(argument string) (platform, error) {
	arch, dirs, ok := strings.Cut(argument, "=")
	programs, root, ok2 := strings.Cut(dirs, ":")
	if !ok || !ok2 {
		return platform{}, fmt.Errorf("%q does not have the form ARCHITECTURE=PROGRAMS:ROOT", argument)
	}
	if _, ok := triplets[arch]; !ok {
		return platform{}, fmt.Errorf("unknown architecture %q", arch)
	}
	return platform{arch, programs, root}, nil
}

func run(o options, arguments []string) error {
	for _, dir := range []string{filepath.Join(o.out, layoutDir), filepath.Join(o.out, "archives")} {
		// What an earlier run wrote must not be part of the result.
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	images := map[string][]ociimage.Spec{}
	for _, argument := range arguments {
		p, err := parse(argument)
		if err != nil {
			return err
		}
		for name, spec := range map[string]func(platform, string) (ociimage.Spec, error){"rik": rik, "riklet": riklet, "hello": hello} {
			s, err := spec(p, o.license)
			if err != nil {
				return fmt.Errorf("building the image %s for %s: %w", name, p.arch, err)
			}
			s.Architecture = p.arch
			s.Labels = map[string]string{"org.opencontainers.image.title": name, "org.opencontainers.image.version": o.tags[0], "org.opencontainers.image.licenses": "Apache-2.0"}
			images[name] = append(images[name], s)
		}
	}
	for _, name := range []string{"rik", "riklet"} {
		if err := o.write(name, images[name]); err != nil {
			return err
		}
	}
	_, err := ociimage.WriteIndexArchive(filepath.Join(o.out, "archives", "hello.tar"), helloName, images["hello"]...)
	return err
}

// write writes an image into the layout, and an archive of each architecture.
func (o options) write(name string, specs []ociimage.Spec) error {
	var names []string
	for _, tag := range o.tags {
		if o.layout {
			if _, err := ociimage.WriteIndex(filepath.Join(o.out, layoutDir), name+"-"+tag, specs...); err != nil {
				return err
			}
		}
		names = append(names, registry+name+":"+tag)
	}
	for _, spec := range specs {
		file := filepath.Join(o.out, name+"-"+spec.Architecture+".tar")
		spec.Layers = slices.Clone(spec.Layers)
		for i := range spec.Layers {
			spec.Layers[i].Compression = ociimage.Uncompressed // the archive has no others
		}
		if _, err := ociimage.WriteDockerArchive(file, names[0], spec, names[1:]...); err != nil {
			return err
		}
		fmt.Println(file)
	}
	return nil
}

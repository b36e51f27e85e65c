// Command package makes the parts of rik's packages that are not programs. hack/packages.sh runs
// it, and nfpm makes the .deb and .rpm files from what it writes.
//
//	package docs BUNDLE                  man pages, completions and licenses, into a bundle
//	package nfpm BUNDLE VERSION ARCH OUT the settings of nfpm, a file for each package
//	package sbom KERNEL OUT BOM...       one CycloneDX document from those of all programs
//
// SOURCE_DATE_EPOCH is the time of all files. Two runs with the same input write the same bytes.
package main

import (
	"compress/gzip"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("package: ")
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "docs":
		return writeDocs(args[1])
	case len(args) == 5 && args[0] == "nfpm":
		return writeSettings(args[1], args[2], args[3], args[4])
	case len(args) > 3 && args[0] == "sbom":
		return mergeBOMs(args[1], args[2], args[3:])
	}
	return errors.New("usage: package docs BUNDLE | nfpm BUNDLE VERSION ARCH OUT | sbom KERNEL OUT BOM")
}

// buildTime returns the time of all files.
func buildTime() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is not a time in seconds: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// write writes a file and creates its directory.
func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// writeCompressed writes a file as "gzip -9n" does: Debian's policy requires that of man pages and
// change logs.
func writeCompressed(path string, text []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	zip, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	_, err = zip.Write(text)
	return errors.Join(err, zip.Close())
}

// Command image writes an OCI image that holds one static program, into a folder
// and without any registry: what the demo and the examples deploy.
//
//	go run ./hack/image -program bin/hello -ref v1 -out /var/lib/rik-demo/hello
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"rik.dev/rik/internal/testkit/ociimage"
)

func main() {
	log.SetFlags(0)
	program := flag.String("program", "", "static program to put into the image")
	ref := flag.String("ref", "latest", "tag of the image in its folder")
	out := flag.String("out", "", "folder of the OCI layout")
	flag.Parse()
	if *program == "" || *out == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	digest, err := write(*program, *ref, *out)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("oci:%s:%s is %s\n", *out, *ref, digest)
}

func write(program, ref, out string) (string, error) {
	name := "/" + filepath.Base(program)
	return ociimage.Write(out, ref, ociimage.Spec{
		Files:      map[string]ociimage.File{name: {Source: program, Mode: 0o755}},
		Entrypoint: []string{name},
		User:       "65534:65534",
	})
}

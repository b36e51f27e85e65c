// Command image writes an OCI image with one static program to a directory, without a registry. The
// demos and the examples of the guide deploy such images.
//
//	go run ./hack/image -program bin/hello -ref v1 -out /var/lib/rik-demo/hello
package main

import (
	"flag"
	"fmt"
	"log"
	"os"

	"rik.dev/rik/internal/ociimage"
)

func main() {
	log.SetFlags(0)
	program := flag.String("program", "", "static program in the image")
	ref := flag.String("ref", "latest", "tag of the image in its directory")
	out := flag.String("out", "", "directory of the OCI layout")
	shell := flag.Bool("shell", false, "also add busybox with its shell")
	flag.Parse()
	if *program == "" || *out == "" {
		flag.Usage()
		os.Exit(2)
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	digest, err := write(*program, *ref, *out, *shell)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("oci:%s:%s is %s\n", *out, *ref, digest)
}

func write(program, ref, out string, shell bool) (string, error) {
	spec, err := ociimage.ProgramSpec(program, shell)
	if err != nil {
		return "", err
	}
	return ociimage.Write(out, ref, spec)
}

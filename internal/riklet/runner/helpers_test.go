package runner

import (
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

func readFile(path string) (string, error) {
	data, err := os.ReadFile(path)
	return string(data), err
}

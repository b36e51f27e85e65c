package validation

import "k8s.io/apimachinery/pkg/api/resource"

// Bounds has the limits that all requests share, by their text.
var Bounds = map[string]*resource.Quantity{"10m": &smallestCPU, "4Mi": &smallestMemory, "128Mi": &smallestMachine}

package schema

import (
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/lru"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// offeredSchema is an offer with its parsed schema.
type offeredSchema struct {
	Offer
	root  *node
	size  int
	props *apiextensionsv1.JSONSchemaProps
	// checker is created when it is first needed. It stays nil if none can be made.
	checker   *checker
	validated bool
}

func readOffer(o Offer) (*offeredSchema, error) {
	props, err := Parse(o.Spec.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	root, err := readRoot(props)
	if err != nil {
		return nil, err
	}
	return &offeredSchema{Offer: o, root: root, size: root.size(), props: props}, nil
}

func (o *offeredSchema) asMember() *member { return &member{location: o.Location, node: o.root} }

func (o *offeredSchema) ask() *checker {
	if !o.validated {
		// If no checker can be made of a schema that was read, the cause is an expression. Then
		// no example is found, and the obstacle has none.
		o.checker, _ = newChecker(o.props, true)
		o.validated = true
	}
	return o.checker
}

// tries limits the documents that are made in search of a counterexample. Most obstacles need
// few. The limit keeps the search cheap for obstacles that have no counterexample.
const tries = 300

// maxEffort limits the work for the examples of all obstacles together. Each document counts with
// the size of the schemas from which it is made, plus valueEffort for each of its values. Two
// clusters may differ in tens of thousands of fields, and each difference would need a document
// of that size. Nested lists give a document thousands of values. A Deployment, which has two
// thousand fields, gets some hundreds of documents. The limit is one to two seconds of CPU.
const maxEffort, valueEffort = 4_000_000, 20

// maxRuleCost limits the cost of the rules of these documents, in the units of an API server:
// about a second of CPU. It is the limit for the rules of one document.
const maxRuleCost = celconfig.RuntimeCELCostBudget

// addExamples adds a document to each obstacle of a schema, as long as the effort allows. One of
// the offers accepts the document, and another cannot hold it unchanged.
func addExamples(obstacles []apiresourcev1alpha1.Obstacle, pairs [][2]*offeredSchema) {
	if len(obstacles) == 0 {
		return
	}
	key := exampleKey(obstacles, pairs)
	if known, ok := exampleCache.Get(key); ok {
		examples, _ := known.([]string)
		for i := range obstacles {
			obstacles[i].CounterExample = examples[i]
		}
		return
	}
	search(obstacles, pairs)
	examples := make([]string, len(obstacles))
	for i := range obstacles {
		examples[i] = obstacles[i].CounterExample
	}
	exampleCache.Add(key, examples)
}

// exampleCache caches the results of recent searches. The same schemas are compared again
// whenever anything about their type changes, and always have the same examples.
var exampleCache = lru.New(64)

// exampleKey returns a hash of all inputs of the search.
func exampleKey(obstacles []apiresourcev1alpha1.Obstacle, pairs [][2]*offeredSchema) [sha256.Size]byte {
	hash := sha256.New()
	add := func(text []byte) {
		// writing to a hash cannot fail
		_ = binary.Write(hash, binary.BigEndian, uint64(len(text)))
		hash.Write(text)
	}
	for i := range obstacles {
		add([]byte(obstacles[i].Path))
	}
	for _, pair := range pairs {
		for _, o := range pair {
			gv := o.Spec.GroupVersion
			add([]byte(gv.Group + "/" + gv.Version + "/" + o.Spec.Names.Kind))
			add(o.Spec.OpenAPIV3Schema.Raw)
		}
	}
	return [sha256.Size]byte(hash.Sum(nil))
}

// search finds the examples for addExamples.
func search(obstacles []apiresourcev1alpha1.Obstacle, pairs [][2]*offeredSchema) {
	effort, ruleCost := maxEffort, int64(maxRuleCost)
	for i := range obstacles {
		o := &obstacles[i]
		if isOfNames(o.Path) {
			continue
		}
		for _, pair := range pairs {
			each := pair[0].size + pair[1].size
			doc := counterExample(o.Path, pair[0], pair[1], min(tries/len(pairs)+1, effort/each), &effort, &ruleCost)
			if doc != nil {
				o.CounterExample = encode(doc)
				break
			}
		}
	}
}

// counterExample returns a document that accepting accepts and refusing does not hold, only
// because of the value at the path. It returns nil if it finds none. It subtracts the cost of the
// documents from effort, and the cost of their rules from ruleCost.
func counterExample(path string, accepting, refusing *offeredSchema, tries int, effort *int, ruleCost *int64) map[string]any {
	if tries <= 0 || *ruleCost <= 0 {
		return nil
	}
	accepts, refuses := accepting.ask(), refusing.ask()
	steps := stepsOf(path, accepting.root)
	if accepts == nil || refuses == nil {
		return nil
	}
	s, blamed := newSampler(uint64(len(path))), blames(path)
	var best map[string]any
	most := 0
	left, before := *ruleCost, accepts.spent+refuses.spent
	defer func() { *ruleCost = left - (accepts.spent + refuses.spent - before) }()
	for i := 0; i < tries && *effort > 0 && accepts.spent+refuses.spent-before < left; i++ {
		s.sparse = i%3 > 0
		// A missing value may be the cause too.
		present := steps
		if i%2 == 1 && len(steps) > 0 {
			present = steps[:len(steps)-1]
		}
		*s.left = maxValues
		sampled := s.resource(accepting.root, refusing.root, present)
		*effort -= accepting.size + refusing.size + valueEffort*(maxValues-*s.left)
		accepting.name(sampled)
		doc, err := accepts.admit(sampled)
		if err != nil {
			continue
		}
		// In JSON, a fraction such as 2.0 becomes the integer 2.
		doc, _ = mustValue(encode(doc)).(map[string]any)
		r := refuses.refuses(doc)
		if r == nil || accepts.holds(doc) != nil {
			continue
		}
		if best == nil {
			tries = min(tries, i+betterTries)
		}
		if fits := blamed(r.paths); fits > most {
			best, most = doc, fits
		}
		if most == blameOnly {
			break
		}
	}
	return best
}

// betterTries is how many more documents are made in search of a counterexample that shows only
// the obstacle.
const betterTries = 30

// How well the paths for which a document is refused match the path of an obstacle.
const (
	blameOthers = 1 + iota
	blameAmong
	blameOnly
)

// blames returns a function that compares the paths for which a document is refused with the path
// of an obstacle. In that path, [*] stands for any item of a list and any key of a map.
func blames(path string) func([]string) int {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(strings.Trim(path, ".")), `\[\*\]`, `(\[[^\]]*\]|\.[^.\[]+)`)
	at := regexp.MustCompile(`^\.?` + pattern + `($|[.\[])`)
	return func(refused []string) int {
		hits := 0
		for _, p := range refused {
			if path == "." || at.MatchString(p) {
				hits++
			}
		}
		switch hits {
		case 0:
			return blameOthers
		case len(refused):
			return blameOnly
		default:
			return blameAmong
		}
	}
}

// name sets the type of a document.
func (o *offeredSchema) name(doc map[string]any) {
	if gv := o.Spec.GroupVersion; gv.Version != "" && o.Spec.Names.Kind != "" {
		doc["apiVersion"] = strings.TrimPrefix(gv.Group+"/"+gv.Version, "/")
		doc["kind"] = o.Spec.Names.Kind
	}
}

// stepsOf splits the path of an obstacle along a node, as far as the node can have a value there.
func stepsOf(path string, n *node) []string {
	var steps []string
	path = strings.TrimPrefix(path, ".")
	for path != "" {
		step, rest := nextStep(path, n)
		switch step {
		case anyItem:
			n = n.element()
		case anyKey:
			n = n.value("key")
		default:
			n = n.value(step)
		}
		if n == nil {
			break
		}
		steps, path = append(steps, step), strings.TrimPrefix(rest, ".")
	}
	return steps
}

func nextStep(path string, n *node) (step, rest string) {
	if rest, found := strings.CutPrefix(path, "[*]"); found {
		if n.has(arrays) && n.items != nil || !n.has(objects) {
			return anyItem, rest
		}
		return anyKey, rest
	}
	// The name of a property may contain dots and brackets.
	for key := range n.properties {
		if len(key) > len(step) && (path == key || strings.HasPrefix(path, key+".") || strings.HasPrefix(path, key+"[")) {
			step = key
		}
	}
	if step != "" {
		return step, path[len(step):]
	}
	if end := strings.IndexAny(path, ".["); end > 0 {
		return path[:end], path[end:]
	}
	return path, ""
}

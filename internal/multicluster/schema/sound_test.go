package schema

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
)

// number reads a number from the environment.
func number(t testing.TB, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 {
		t.Fatalf("%s=%q: give a number above 0", name, text)
	}
	return n
}

const (
	// shards is how many parts of the test run at the same time.
	shards = 4
	// documentsOf is how many documents are tried for each family of schemas.
	documentsOf = 40
	// racedPairs is how many pairs of schemas and documents are enough under the race detector.
	racedPairs = 400
)

// checkCounts counts what a test has checked.
type checkCounts struct{ families, met, documents, pairs, bytes atomic.Int64 }

// overFamilies runs check for families of offers until it has covered enough pairs of schemas and
// documents. The number is RIK_SCHEMA_PAIRS if that is set. The first seed is RIK_SCHEMA_SEED. It
// returns nil if a check failed.
func overFamilies(t *testing.T, pairs uint64, check func(t *testing.T, seed uint64, g generator, counts *checkCounts)) *checkCounts {
	counts := &checkCounts{}
	each, first := int64(number(t, "RIK_SCHEMA_PAIRS", pairs)/shards)+1, number(t, "RIK_SCHEMA_SEED", 1)
	var failed atomic.Bool
	t.Run("shards", func(t *testing.T) {
		for shard := range uint64(shards) {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				mine := &checkCounts{}
				defer func() {
					if t.Failed() {
						failed.Store(true)
					}
				}()
				for i := uint64(0); mine.pairs.Load() < each && !failed.Load(); i++ {
					seed := first + i*shards + shard
					check(t, seed, newGenerator(seed), mine)
				}
				counts.families.Add(mine.families.Load())
				counts.met.Add(mine.met.Load())
				counts.documents.Add(mine.documents.Load())
				counts.pairs.Add(mine.pairs.Load())
				counts.bytes.Add(mine.bytes.Load())
			})
		}
	})
	if failed.Load() {
		return nil
	}
	t.Logf("%d pairs; %d of %d families had one schema for all; %d documents were made, %d bytes were looked at",
		counts.pairs.Load(), counts.met.Load(), counts.families.Load(), counts.documents.Load(), counts.bytes.Load())
	return counts
}

func mustRead(t rapid.TB, offers ...Offer) []*offeredSchema {
	t.Helper()
	read, unreadable := readOffers(offers)
	if unreadable != nil {
		t.Fatalf("reading the offers: %v", unreadable)
	}
	return read
}

// TestMeetIsSound tests that each member can hold every document that is valid under the meet,
// after its defaulting. It uses the code of Kubernetes. Only documents that the meet accepts are
// counted.
func TestMeetIsSound(t *testing.T) {
	t.Parallel()
	meetIsSound(t, cases(100_000, racedPairs), func(g generator) generator { return g })
}

// TestMeetOfRulesIsSound is the same test for schemas with rules. Most rules use a property that
// some members lack or fill in.
func TestMeetOfRulesIsSound(t *testing.T) {
	t.Parallel()
	meetIsSound(t, cases(5_000, racedPairs), func(g generator) generator { g.focus = rules; return g })
}

func meetIsSound(t *testing.T, pairs uint64, of func(generator) generator) {
	t.Helper()
	counts := overFamilies(t, pairs, func(t *testing.T, seed uint64, g generator, counts *checkCounts) {
		g = of(g)
		members := mustRead(t, family(g, 2+g.IntN(2))...)
		counts.families.Add(1)
		agreement, _ := (&meeting{}).agree(members)
		if agreement == nil {
			return
		}
		counts.met.Add(1)
		meet := mustRead(t, Offer{Location: "meet", Spec: agreement.Spec})[0]
		if !usable(meet.props) {
			t.Fatalf("seed %d: no API server would take the meet %s", seed, agreement.Spec.OpenAPIV3Schema.Raw)
		}
		roots := make([]*node, len(members))
		for i, m := range members {
			roots[i] = m.root
		}
		if at := otherDefault("", meet.root, roots, false); at != "" {
			t.Fatalf("seed %d: the default at %s is not that of all members, or it is lost\nmeet %s\nmembers %s\n%s", seed, at,
				agreement.Spec.OpenAPIV3Schema.Raw, members[0].Spec.OpenAPIV3Schema.Raw, members[1].Spec.OpenAPIV3Schema.Raw)
		}
		checkHeld(t, seed, g, meet, members, counts)
	})
	if counts != nil && counts.met.Load()*2 < counts.families.Load() {
		t.Errorf("only %d of %d families have a meet: the test looks at too little", counts.met.Load(), counts.families.Load())
	}
}

// otherDefault returns the path of a property of a meet with a wrong default: no member has it,
// or it is missing although all members have the same one. The path is empty if all defaults are
// right. validated is true if an object that contains the meet is validated as a whole.
func otherDefault(path string, meet *node, members []*node, validated bool) string {
	validated = validated || slices.ContainsFunc(members, checks)
	for key, p := range meet.properties {
		var values []*node
		for _, m := range members {
			if v := m.value(key); v != nil {
				values = append(values, v)
			}
		}
		if p.impossible || len(values) < len(members) {
			continue
		}
		first := values[0].fallback
		differs := slices.ContainsFunc(values, func(v *node) bool { return v.fallback != first })
		given := slices.ContainsFunc(values, func(v *node) bool { return v.fallback == p.fallback })
		if differs && p.fallback != "" && !given || !differs && accepts(p, first) && p.fallback != first {
			return path + "." + key
		}
		if p.fallback == "" && slices.ContainsFunc(values, func(v *node) bool { return v.fallback != "" }) && !meet.requires(key) && !validated {
			return path + "." + key
		}
		if at := otherDefault(path+"."+key, p, values, validated); at != "" {
			return at
		}
	}
	if meet.items == nil || meet.items.impossible {
		return ""
	}
	items := make([]*node, len(members))
	for i, m := range members {
		items[i] = m.element()
	}
	return otherDefault(path+"[*]", meet.items, items, validated)
}

// checks reports whether a node may validate its object as a whole.
func checks(n *node) bool {
	return n.maxProperties != nil || len(n.allOf)+len(n.anyOf)+len(n.oneOf)+len(n.not)+len(n.enum) > 0
}

// checkHeld creates documents that a schema accepts, and checks that the others hold them.
func checkHeld(t *testing.T, seed uint64, g generator, accepting *offeredSchema, others []*offeredSchema, counts *checkCounts) {
	t.Helper()
	var old map[string]any
	for range documentsOf {
		counts.documents.Add(1)
		doc, err := accepting.ask().admit(g.resource(accepting.root, others[0].root, nil))
		if err != nil {
			continue
		}
		counts.bytes.Add(int64(len(encode(doc["spec"]))))
		for _, m := range others {
			if err := m.ask().holds(doc); err != nil {
				t.Fatalf("seed %d: %s accepts what %s does not hold: %v\ndocument %s\naccepted by %s\nnot held by %s",
					seed, accepting.Location, m.Location, err, encode(doc), accepting.Spec.OpenAPIV3Schema.Raw, m.Spec.OpenAPIV3Schema.Raw)
			}
			counts.pairs.Add(1)
			if old == nil || accepting.ask().follows(old, doc) != nil {
				continue
			}
			if err := m.ask().follows(old, doc); err != nil {
				t.Fatalf("seed %d: %s accepts a change that %s refuses: %v\nfrom %s\nto %s\naccepted by %s\nrefused by %s",
					seed, accepting.Location, m.Location, err, encode(old), encode(doc), accepting.Spec.OpenAPIV3Schema.Raw, m.Spec.OpenAPIV3Schema.Raw)
			}
		}
		old = doc
	}
}

// TestCompatibleIsSound tests that the offered schema holds every document of the existing one if
// Compatible finds no obstacles.
func TestCompatibleIsSound(t *testing.T) {
	t.Parallel()
	counts := overFamilies(t, cases(50_000, racedPairs), func(t *testing.T, seed uint64, g generator, counts *checkCounts) {
		offers := family(g, 2)
		// Two similar schemas are seldom compatible. The meet with another one is compatible more
		// often, without being equal.
		members := mustRead(t, offers...)
		if agreement, _ := (&meeting{}).agree(members); agreement != nil {
			members = append(members, mustRead(t, Offer{Location: "meet", Spec: agreement.Spec})...)
		}
		for _, existing := range members {
			for _, other := range members {
				if existing == other {
					continue
				}
				counts.families.Add(1)
				if len(compare(existing, other)) > 0 {
					continue
				}
				counts.met.Add(1)
				checkHeld(t, seed, g, existing, []*offeredSchema{other}, counts)
			}
		}
	})
	if counts == nil {
		return
	}
	if met, all := counts.met.Load(), counts.families.Load(); met*10 < all || met == all {
		t.Errorf("%d of %d pairs of schemas are compatible: the test looks at too little", met, all)
	}
}

// TestMeetIsBelowItsMembers tests that the meet is compatible with each member, by the other
// comparison.
func TestMeetIsBelowItsMembers(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed < cases(300, 30); seed++ {
		members := mustRead(t, family(newGenerator(seed), 3)...)
		agreement, _ := (&meeting{}).agree(members)
		if agreement == nil {
			continue
		}
		meet := mustRead(t, Offer{Location: "meet", Spec: agreement.Spec})[0]
		for _, m := range members {
			if found := compare(meet, m); len(found) > 0 {
				t.Fatalf("seed %d: the meet is not compatible with %s: %v\nmeet %s\nmember %s", seed, m.Location, found,
					agreement.Spec.OpenAPIV3Schema.Raw, m.Spec.OpenAPIV3Schema.Raw)
			}
		}
	}
}

// TestCounterExampleIsSound tests that a counterexample is accepted by one offer and not held by
// another, and that nearly every obstacle has one.
func TestCounterExampleIsSound(t *testing.T) {
	t.Parallel()
	obstacles, without := 0, 0
	for seed := range cases(200, 15) {
		offers := family(newGenerator(seed), 2)
		found := Compatible(offers[0], offers[1])
		members := mustRead(t, offers...)
		for _, o := range found {
			if o.CounterExample == "" {
				if reachable(o.Path, members[0]) {
					obstacles, without = obstacles+1, without+1
				}
				continue
			}
			obstacles++
			checkCounterExample(t, o, [][2]*offeredSchema{{members[0], members[1]}})
		}
		agreement, why := Meet(offers...)
		if agreement != nil {
			why = agreement.Dropped
		}
		for _, o := range why {
			if o.CounterExample != "" {
				checkCounterExample(t, o, pairsOf(members))
			}
		}
	}
	t.Logf("%d of %d obstacles have no counter-example", without, obstacles)
	if obstacles == 0 || without*10 > obstacles {
		t.Errorf("%d of %d obstacles have no counter-example", without, obstacles)
	}
}

// reachable reports whether the sampler finds documents with a value at a path that a schema
// accepts. Generated schemas often contradict themselves, and then it finds none.
func reachable(path string, o *offeredSchema) bool {
	steps := stepsOf(path, o.root)
	s := newSampler(7)
	s.sparse = true
	for range 300 {
		if _, err := o.ask().admit(s.resource(o.root, o.root, steps)); err == nil {
			return true
		}
	}
	return false
}

func checkCounterExample(t *testing.T, o apiresourcev1alpha1.Obstacle, pairs [][2]*offeredSchema) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(o.CounterExample), &doc); err != nil {
		t.Fatalf("%s: the counter-example is no document: %v", o.Path, err)
	}
	doc = mustValue(o.CounterExample).(map[string]any)
	for _, pair := range pairs {
		if pair[0].ask().holds(doc) == nil && pair[1].ask().holds(doc) != nil {
			return
		}
	}
	t.Fatalf("%s: no offer accepts %s while another refuses it", o.Path, o.CounterExample)
}

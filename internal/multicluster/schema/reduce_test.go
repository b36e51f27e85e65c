package schema

import (
	"testing"

	"sigs.k8s.io/yaml"
)

func nodeOf(t *testing.T, schema string) *node {
	t.Helper()
	p := &props{}
	if err := yaml.Unmarshal([]byte(schema), p); err != nil {
		t.Fatalf("decoding %s: %v", schema, err)
	}
	n, err := read(p)
	if err != nil {
		t.Fatalf("reading %s: %v", schema, err)
	}
	return n
}

// TestRulesAreReduced tests rules about three kinds of properties: new has no default, filled has
// one, and other is not dropped.
func TestRulesAreReduced(t *testing.T) {
	t.Parallel()
	was := nodeOf(t, `{type: object, properties: {
  other: {type: string}, count: {type: number}, port: {x-kubernetes-int-or-string: true},
  new: {type: string}, filled: {type: string, default: TCP}, set: {type: array, default: [a, b], items: {type: string}},
  nested: {type: object, default: {}, properties: {mode: {type: string, default: Auto}, level: {type: integer}}},
  kept: {type: object, properties: {other: {type: string}, new: {type: string}, filled: {type: integer, default: 3}}},
  maybe: {type: object, nullable: true, properties: {new: {type: string}}},
  list: {type: array, items: {type: object, properties: {other: {type: string}, new: {type: string}, filled: {type: string, default: TCP}}}},
  map: {type: object, additionalProperties: {type: string}},
}}`)
	is := nodeOf(t, `{type: object, properties: {
  other: {type: string}, count: {type: integer}, port: {type: integer}, kept: {type: object, properties: {other: {type: string}}},
  maybe: {type: object, nullable: true},
  list: {type: array, items: {type: object, properties: {other: {type: string}}}},
  map: {type: object, properties: {a: {type: string}}},
}}`)
	const always, never = "", "false"
	for rule, want := range map[string]string{
		"!has(self.other) || self.other != 'a'":                                                 "!has(self.other) || self.other != 'a'",
		"!has(self.new) || self.new != 'a'":                                                     always,
		"has(self.new)":                                                                         never,
		"has(self.new) || has(self.other)":                                                      "has(self.other)",
		"!(has(self.new) && has(self.other))":                                                   always,
		"has(self.new) ? self.new == 'a' : has(self.other)":                                     "has(self.other)",
		"has(self.new) == has(self.other)":                                                      "false == has(self.other)",
		"[has(self.new), has(self.other)].filter(x, x).size() == 1":                             "[false, has(self.other)].filter(x, x).size() == 1",
		"(has(self.new) ? 1 : 0) + (has(self.other) ? 1 : 0) <= 1":                              "0 + (has(self.other) ? 1 : 0) <= 1",
		"self.new == 'a'":                                                                       never,
		"self.new == 'a' || has(self.other)":                                                    "has(self.other)",
		"!(self.new == 'a' || has(self.other))":                                                 never,
		"!(self.new == 'a' && has(self.other))":                                                 "!has(self.other)",
		"has(self.filled)":                                                                      always,
		"self.filled == 'TCP'":                                                                  always,
		"self.filled == 'UDP' || has(self.other)":                                               "has(self.other)",
		"self.filled != self.other":                                                             `"TCP" != self.other`,
		"self.set.all(x, x != self.other)":                                                      `["a", "b"].all(x, x != self.other)`,
		"'a' in self.set && size(self.set) == 2":                                                always,
		"self.set.exists(x, x == 'c')":                                                          never,
		"self.nested.mode == 'Auto' && !has(self.nested.level)":                                 always,
		"has(self.nested.level) && self.nested.level > 1":                                       never,
		"self.?new.orValue('a') == 'a'":                                                         always,
		"self.?new.hasValue() || has(self.other)":                                               "has(self.other)",
		"self.?kept.?new.orValue('') == ''":                                                     always,
		"!has(self.kept) || !has(self.kept.new) || self.kept.new != ''":                         always,
		"!has(self.kept.new)":                                                                   "has(self.kept)",
		"!has(self.kept) || self.kept.filled < 4":                                               always,
		"self.kept.filled < 4":                                                                  "has(self.kept)",
		"!has(self.kept) || self.kept.filled == size(self.other)":                               "!has(self.kept) || 3 == size(self.other)",
		"!has(self.maybe) || !has(self.maybe.new)":                                              "!has(self.maybe) || self.maybe != null",
		"self.list.all(x, !has(x.new) || x.new != x.other)":                                     "has(self.list)",
		"!has(self.list) || self.list.all(x, has(x.new) || has(x.other))":                       "!has(self.list) || self.list.all(x, has(x.other))",
		"self.list.all(x, x.filled == 'TCP' || x.other == '')":                                  "has(self.list)",
		"self.list.exists_one(x, has(x.new) || x.other == 'a')":                                 `self.list.exists_one(x, x.other == "a")`,
		"self.list.all(x, self.list.exists_one(y, x.filled == y.filled && x.other == y.other))": "self.list.all(x, self.list.exists_one(y, x.other == y.other))",
		"self.list.filter(x, has(x.new)).size() < 2":                                            "self.list.filter(x, false).size() < 2",
		"!has(oldSelf.new) || has(self.new)":                                                    always,
		"has(oldSelf.other) == has(self.other) && self.filled == oldSelf.filled":                "has(oldSelf.other) == has(self.other)",
		"self.count < 2.5":                                                                      "double(self.count) < 2.5",
		"self.port == 'http' || self.port == 80":                                                `dyn(self.port) == "http" || dyn(self.port) == 80`,
		"has(self.map) && self.map['a'] == 'x'":                                                 `has(self.map) && self.map.a == "x"`,
		"self.map['b'] == 'x' || has(self.other)":                                               "has(self.other)",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			got, missing, err := reduceRule(rule, was, is, false)
			if err != nil || got != want {
				t.Errorf("reduceRule = %q, %v, want %q (missing %v)", got, err, want, missing)
			}
		})
	}
}

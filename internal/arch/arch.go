// Package arch holds the table of which package of rik may import which, and
// the test that keeps it true.
//
// Arrows only point down: cmd, then internal/app, then the components, then
// what components share, then api and proto stubs. Components never import each
// other; they meet in API objects and wire types.
package arch

import (
	"slices"
	"strings"
)

// Rule says what the packages below a path may import of this module and what
// they must not import from elsewhere.
type Rule struct {
	// Under is a path below the module; the longest that matches applies.
	Under string
	// May lists paths below the module that may be imported, in addition to Under itself.
	May []string
	// Except lists paths below the module that may not be imported although Under or May has them.
	Except []string
	// MustNot lists import path prefixes of other modules that are forbidden,
	// also indirectly.
	MustNot []string
}

// heavy is what a node agent has no room for: each adds megabytes of memory.
var heavy = []string{"k8s.io/client-go", "k8s.io/apiserver", "k8s.io/kubernetes", "sigs.k8s.io/controller-runtime", "go.etcd.io/etcd"}

// external are the beginnings of the paths of other modules that rik uses.
var external = []string{"cel.dev", "github.com", "go.etcd.io", "go.podman.io", "go.uber.org", "golang.org", "google.golang.org", "gopkg.in", "k8s.io", "sigs.k8s.io"}

// pulls is what rik-unpack has so that the agent need not: libraries for
// registries, archives and layers.
var pulls = []string{"go.podman.io", "github.com/opencontainers/umoci"}

// small are packages for one purpose each, which use only the standard library.
var small = []string{"internal/atomicfile", "internal/excerpt", "internal/executable", "internal/integrity", "internal/pause", "internal/portowner", "internal/sdnotify", "internal/wakeup"}

// shared is what every component may use.
var shared = append([]string{"api", "internal/rpc", "internal/reconcile", "internal/pki", "internal/lockfile", "internal/boltfile", "internal/controllerterm", "internal/fencing", "internal/finalstate", "internal/version"}, small...)

// engine is what every engine of the runner may use: the contract, and no other part of the runner.
// Thus engines do not know the runner, or each other.
var engine = append([]string{
	"api", "internal/riklet/cgroup", "internal/riklet/instance", "internal/riklet/lifecycle", "internal/riklet/mounts", "internal/riklet/progress",
	"internal/riklet/projected", "internal/riklet/runner/command", "internal/riklet/runner/engine", "internal/riklet/runner/spec", "internal/riklet/shim",
}, small...)

// splitterControllers run the splitter's decisions in a kcp. What decides, and the command line
// that explains decisions, do not need them.
var splitterControllers = []string{"internal/multicluster/splitter/controller", "internal/multicluster/splitter/follower", "internal/multicluster/splitter/cache"}

// forTests are what the tests of every package may import: test kits, and the writer of images.
var forTests = []string{"internal/testkit", "internal/ociimage"}

// inside are the test kits that run rik's API server in the test process, under the race
// detector. That takes minutes where a process of its own takes seconds, and links all of
// Kubernetes' server: it is for tests of what is in that server's process.
var inside = []string{"internal/testkit/apitest", "internal/testkit/kcpinside", "internal/testkit/controltest"}

// mayHaveInside are the packages whose tests it is for.
var mayHaveInside = []string{"internal/apiserver", "internal/app", "internal/controller", "internal/testkit"}

// rikctlShared are the packages that the commands of rikctl share. They import each other, and no
// command.
var rikctlShared = []string{
	"internal/rikctl/access", "internal/rikctl/clierror", "internal/rikctl/cmdline", "internal/rikctl/config",
	"internal/rikctl/manifest", "internal/rikctl/notranslate", "internal/rikctl/ownership", "internal/rikctl/printer", "internal/rikctl/progress",
	"internal/rikctl/rikctltest", "internal/rikctl/scheme", "internal/rikctl/target", "internal/rikctl/trouble",
	"internal/rikctl/waiting", "internal/rikctl/workloadkind",
}

// rikctlCommands are the packages of rikctl's commands, each with what it may import in addition
// to the packages that all of them share. Commands do not import each other: the root composes them.
var rikctlCommands = map[string][]string{
	"apply": nil, "backup": {"internal/backup"}, "cluster": {"internal/multicluster/kubeconfig"}, "configcmd": nil, "create": nil, "debug": nil, "deletion": nil,
	"describe": nil, "exec": nil, "get": nil, "image": nil, "lint": nil, "logs": nil,
	"negotiate": {"internal/multicluster/schema", "internal/multicluster/negotiation/plan"},
	"node":      {"internal/rikctl/drain"}, "portforward": {"internal/rikctl/forward"}, "proxy": nil, "restore": nil, "rollout": nil, "scale": nil, "server": nil,
	"split": {"internal/multicluster/splitter"}, "suggest": nil, "token": nil, "top": nil, "versions": nil, "wait": nil, "why": nil,
	// drain and forward do the work of a command, apart from its command line.
	"drain": nil, "forward": nil,
	// handover starts rikctl from the program rik.
	"handover": nil,
}

// rikctlRules returns the rules of the packages below the command line.
func rikctlRules() []Rule {
	var rules []Rule
	rule := func(under string, may ...[]string) {
		rules = append(rules, Rule{Under: under, Except: splitterControllers, May: slices.Concat(append(may, shared)...), MustNot: []string{"k8s.io/kubernetes"}})
	}
	for _, under := range rikctlShared {
		rule(under, rikctlShared)
	}
	// The sample objects of tests have a type that a kcp splits.
	rule("internal/rikctl/rikctltest", rikctlShared, []string{"internal/multicluster/splitter"})
	for name, may := range rikctlCommands {
		rule("internal/rikctl/"+name, rikctlShared, may)
	}
	return rules
}

// Rules is the table. A package without a rule fails the test.
var Rules = append(rikctlRules(), []Rule{
	{Under: "api/rik/v1alpha1", MustNot: heavy},
	{Under: "api", May: []string{"api"}, MustNot: heavy},
	{Under: "internal/atomicfile", MustNot: external},
	// The format of backups, for the server and the command line. It knows no datastore.
	{Under: "internal/backup", May: []string{"internal/atomicfile"}, MustNot: append([]string{"k8s.io", "sigs.k8s.io", "google.golang.org"}, heavy...)},
	{Under: "internal/sdnotify", MustNot: external},
	{Under: "internal/excerpt", MustNot: external},
	{Under: "internal/executable", MustNot: external},
	{Under: "internal/integrity", MustNot: external},
	{Under: "internal/pause", MustNot: external},
	{Under: "internal/portowner", MustNot: external},
	{Under: "internal/wakeup", MustNot: external},
	// Informers are client-go's, so the riklet cannot use it.
	{Under: "internal/finalstate", MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime"}},
	{Under: "internal/rpc", May: []string{"internal/excerpt"}, MustNot: heavy},
	{Under: "internal/version", MustNot: heavy},
	{Under: "internal/pki", May: []string{"internal/atomicfile", "internal/pause"}, MustNot: heavy},
	{Under: "internal/lockfile", MustNot: heavy},
	// The term of the active controller goes with its writes to where they are stored.
	{Under: "internal/controllerterm", MustNot: heavy},
	{Under: "internal/boltfile", MustNot: heavy},
	// Seven packages act on fences. Their decisions are arithmetic of times, and part of the node agent.
	{Under: "internal/fencing", MustNot: append([]string{"k8s.io", "sigs.k8s.io", "google.golang.org", "github.com"}, heavy...)},
	{Under: "internal/heap", MustNot: heavy},
	{Under: "internal/install", May: []string{"internal/atomicfile", "internal/install", "internal/pause"}, MustNot: heavy},
	{Under: "internal/ociimage", MustNot: heavy},
	{Under: "internal/demo", May: append([]string{"internal/install/layout", "internal/ociimage"}, shared...), MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver"}},
	{Under: "internal/reconcile", May: []string{"api"}},
	{Under: "internal/scheduler/placement", May: []string{"api"}, MustNot: heavy},
	{Under: "internal/scheduler", May: shared, MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver", "k8s.io/client-go"}},
	// Simulated nodes are admitted through the API. The scheduler itself knows no API.
	{Under: "internal/scheduler/simulate/admission", May: shared, MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver"}},
	{Under: "internal/riklet", May: shared, MustNot: heavy},
	{Under: "internal/riklet/runner/engine", May: []string{"api", "internal/riklet/cgroup", "internal/riklet/instance", "internal/riklet/lifecycle", "internal/riklet/netns", "internal/riklet/progress", "internal/riklet/runner/spec", "internal/riklet/shim"}, MustNot: heavy},
	{Under: "internal/riklet/runner/command", May: []string{"internal/riklet/instance"}, MustNot: heavy},
	{Under: "internal/riklet/runner/oci", May: append([]string{"internal/riklet/image"}, engine...), MustNot: heavy},
	{Under: "internal/riklet/runner/process", May: append([]string{"internal/riklet/archive", "internal/riklet/image"}, engine...), MustNot: heavy},
	{Under: "internal/riklet/runner/microvm", May: append([]string{"internal/riklet/disk", "internal/riklet/guest", "internal/riklet/image", "internal/riklet/network/tap", "internal/riklet/vmm"}, engine...), MustNot: heavy},
	// What a machine lacks is judged by what the riklet needs. The program riklet has the command too.
	{Under: "internal/doctor", May: append([]string{"internal/riklet"}, shared...), MustNot: heavy},
	{Under: "internal/controller", May: shared, MustNot: []string{"k8s.io/kubernetes"}},
	{Under: "internal/apiserver", May: append([]string{"config", "internal/backup"}, shared...)},
	{Under: "internal/apiserver/datastore/datastoretest", May: append([]string{"internal/apiserver", "internal/testkit"}, shared...)},
	{Under: "internal/multicluster/schema", May: []string{"api/apiresource"}, MustNot: []string{"k8s.io/kubernetes"}},
	{Under: "internal/multicluster/schema/compat", May: []string{"api/apiresource", "internal/multicluster/schema", "internal/multicluster/negotiation/plan"}, MustNot: []string{"k8s.io/kubernetes"}},
	{Under: "internal/multicluster/negotiation/plan", May: []string{"api", "internal/excerpt", "internal/multicluster/schema"}, MustNot: []string{"k8s.io/kubernetes"}},
	// The splitter and syncers use terminal to decide from an object's status whether it has finished.
	{Under: "internal/multicluster/terminal", May: []string{"api"}, MustNot: heavy},
	{Under: "internal/multicluster/splitter", May: []string{"api", "internal/fencing", "internal/multicluster/terminal"}, Except: splitterControllers, MustNot: heavy},
	{Under: "internal/multicluster/splitter/loader", May: []string{"api", "internal/multicluster/splitter", "internal/multicluster/terminal"}, Except: splitterControllers, MustNot: heavy},
	// The splitter's caches know nothing of its decisions.
	{Under: "internal/multicluster/splitter/cache", May: []string{"internal/finalstate"}, MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime", "go.etcd.io/etcd"}},
	// Followers ask about leaves through an interface. They do not know the controller.
	{Under: "internal/multicluster/splitter/follower", May: []string{"api", "internal/reconcile", "internal/multicluster/splitter", "internal/multicluster/terminal"}, Except: splitterControllers[:1], MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver", "go.etcd.io/etcd"}},
	{Under: "internal/multicluster/splitter/controller", May: append([]string{"config", "internal/multicluster"}, shared...), MustNot: []string{"k8s.io/kubernetes"}},
	{Under: "internal/multicluster/credential", May: []string{"api", "internal/pki"}, MustNot: []string{"k8s.io/kubernetes", "k8s.io/apiserver", "sigs.k8s.io/controller-runtime"}},
	{Under: "internal/multicluster/syncer/renewal", May: []string{"api"}, MustNot: heavy},
	{Under: "internal/multicluster", May: append([]string{"config"}, shared...), MustNot: []string{"k8s.io/kubernetes"}},
	// The root of the command line composes the commands. Its tests play the splitter's controller.
	{Under: "internal/rikctl", Except: splitterControllers, May: append([]string{"internal/backup", "internal/multicluster/splitter"}, shared...), MustNot: []string{"k8s.io/kubernetes"}},
	{Under: "internal/app", May: append([]string{"internal", "config"}, shared...)},
	{Under: "cmd/rik-shim", May: []string{"internal/riklet/shim", "internal/riklet/guest"}, MustNot: append(slices.Clone(pulls), heavy...)},
	{Under: "cmd/rik-init", May: []string{"internal/riklet/guest"}, MustNot: append([]string{"k8s.io"}, append(slices.Clone(pulls), heavy...)...)},
	{Under: "cmd/rik-unpack", May: []string{"internal/riklet/image/unpack"}, MustNot: heavy},
	{Under: "cmd/rik-dns", May: []string{"internal/riklet/network"}, MustNot: append(slices.Clone(pulls), heavy...)},
	{Under: "cmd/riklet", May: []string{"internal/app/node", "internal/riklet", "internal/version"}, MustNot: append(slices.Clone(pulls), heavy...)},
	{Under: "cmd/rikctl", May: []string{"internal/rikctl", "internal/version"}},
	{Under: "cmd", May: []string{"internal/app"}},
	{Under: "hack", May: []string{"api", "internal"}},
	{Under: "config", May: []string{"api"}},
	{Under: "internal/arch"},
	{Under: "internal/testkit", May: []string{"api", "internal"}},
	{Under: "examples"},
	{Under: "test", May: []string{"api", "internal/ociimage", "internal/testkit", "internal/rpc"}},
	{Under: "bench", May: []string{"api", "internal"}},
}...)

// ruleFor finds the rule of a package by its path below the module.
func ruleFor(path string) (Rule, bool) {
	var best Rule
	found := false
	for _, r := range Rules {
		if below(path, r.Under) && len(r.Under) >= len(best.Under) {
			best, found = r, true
		}
	}
	return best, found
}

// allows says whether the rule lets a package import another of the module.
func (r Rule) allows(path string) bool {
	for _, except := range r.Except {
		if below(path, except) {
			return false
		}
	}
	if below(path, r.Under) {
		return true
	}
	for _, may := range r.May {
		if below(path, may) {
			return true
		}
	}
	return false
}

// forbids says whether the rule keeps out an import of another module.
func (r Rule) forbids(path string) bool {
	for _, not := range r.MustNot {
		if below(path, not) {
			return true
		}
	}
	return false
}

// testMayImport says whether a test of a package may import a test kit.
func testMayImport(path, kit string) bool {
	belowAny := func(path string) func(string) bool {
		return func(dir string) bool { return below(path, dir) }
	}
	return !slices.ContainsFunc(inside, belowAny(kit)) || slices.ContainsFunc(mayHaveInside, belowAny(path))
}

func below(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

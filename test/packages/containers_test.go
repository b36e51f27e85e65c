package packages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rik.dev/rik/internal/testkit/privileged"
)

// composed is one way to run deploy/compose on a machine. The commands are shell scripts.
type composed struct {
	name string
	// start starts the engine.
	start string
	// engine is the command line of the engine, and compose that of its compose.
	engine, compose string
	// rest removes what "down -v" leaves.
	rest string
	// recreate is the flag of "up" that replaces containers whose image has changed, if it does not
	// do so by itself.
	recreate string
	// own matches what the engine keeps of every container with a port, of any program: lines of a
	// snapshot.
	own *regexp.Regexp
}

var compositions = []composed{
	{
		name: "docker compose", start: "systemctl start docker",
		engine: "docker", compose: "docker compose",
	},
	{
		name: "docker-compose 1.29", start: "systemctl start docker",
		engine: "docker", compose: "docker-compose",
	},
	{
		name: "podman-compose", start: "podman info",
		engine: "podman", compose: "podman-compose",
		rest: "podman network rm compose_default", recreate: "--force-recreate",
		// The directory of its secrets, its locks, an empty chain, and cgroups of its monitors.
		own: regexp.MustCompile(`/containers/storage/secrets|/dev/shm/libpod_lock|NETAVARK-DN-|libpod-conmon-|^nft \t}$|^nft $`),
	},
}

// TestPrivilegedContainers runs the cluster of deploy/compose on a machine, replaces its images by newer
// ones, and removes it.
func TestPrivilegedContainers(t *testing.T) {
	privileged.Require(t)
	for _, c := range compositions {
		t.Run(c.name, c.test)
	}
}

func (c composed) test(t *testing.T) {
	now, old := environment(t, "RIK_PACKAGES"), environment(t, "RIK_OLD_PACKAGES")
	m := newMachineFrom(t, engines, "test")
	c.bring(m, now, "now")
	c.bring(m, old, "old")
	// The folder of the archives of applications is the same for both versions.
	m.host("cp", "-r", filepath.Join(now, "images", "archives"), filepath.Join(m.root, "test", "archives"))
	m.put(environment(t, "RIK_SAMPLE_PROGRAM"))
	m.run(c.start)
	c.warm(m)
	before := m.snapshot()

	began := time.Now()
	c.load(m, "old")
	c.up(m, "old", "")
	c.answers(m)
	t.Logf("%s: %.1f s from loading the images to an HTTP answer", c.name, time.Since(began).Seconds())
	c.ready(m)
	first, objects, images := c.containers(m), c.objects(m), c.images(m)

	c.load(m, "now")
	if c.images(m) == images {
		t.Error("the images of both versions are the same")
	}
	c.up(m, "now", c.recreate)
	c.answers(m)
	c.ready(m)
	for _, id := range c.containers(m) {
		for _, earlier := range first {
			if id == earlier {
				t.Errorf("container %s still runs the earlier image", id)
			}
		}
	}
	// The server has kept its data, and each node its identity and its instance.
	if diff := cmp.Diff(objects, c.objects(m)); diff != "" {
		t.Errorf("the upgrade changed objects of the cluster (-before +after):\n%s", diff)
	}

	m.run(c.in("now") + "down -v")
	if c.rest != "" {
		m.run(c.rest)
	}
	m.run(c.engine + " image rm -f $(" + c.engine + " image ls -q --filter 'reference=rik.dev/*') $(" + c.engine + " image ls -q --filter dangling=true)")
	m.unchangedBut(before, c.own)
}

// bring copies the images of a version and its compose file to the machine.
func (c composed) bring(m *machine, from, name string) {
	m.Helper()
	to := filepath.Join(m.root, "test", name)
	if err := os.MkdirAll(to, 0o755); err != nil {
		m.Fatal(err)
	}
	m.host("cp", "-r", filepath.Join(from, "images"), filepath.Join(from, "compose"), to)
}

// in returns the compose command for a version, without the verb.
func (c composed) in(version string) string {
	return "cd /test/" + version + " && RIK_ARCHIVES=/test/archives " + c.compose + " -f compose/docker-compose.yml "
}

// warm runs a container of the engine with a network and a volume of its own, and removes them, so
// that the engine has made the files and rules that it makes once.
func (c composed) warm(m *machine) {
	m.Helper()
	m.run(strings.ReplaceAll(`mkdir -p /test/warm && mv /test/hello-program /test/warm/hello
tar -C /test/warm -c hello | ENGINE import -c 'ENTRYPOINT ["/hello"]' - warm:v1
ENGINE network create warm
ENGINE run -d --name warm --network warm -v warm:/data -p 8080:8080 warm:v1 -listen :8080 -udp :9090
ENGINE rm -f warm
ENGINE volume rm warm
ENGINE network rm warm
ENGINE image rm warm:v1`, "ENGINE", c.engine))
}

// load loads the images of a version.
func (c composed) load(m *machine, version string) {
	m.Helper()
	m.run("for image in /test/" + version + "/images/*-*.tar; do " + c.engine + " load -i $image; done")
}

// up starts a version. All its containers but the one that creates the application must run then,
// because podman-compose succeeds also if it cannot start one.
func (c composed) up(m *machine, version, flag string) {
	m.Helper()
	out := m.run(c.in(version) + "up -d " + flag + " 2>&1")
	if running := m.run(c.engine + " ps --format '{{.Names}}'"); !strings.Contains(running, "server") {
		m.Fatalf("the server does not run. up printed:\n%s\nwhat runs:\n%s", out, running)
	}
}

// answers waits until the application answers at the published port.
func (c composed) answers(m *machine) {
	m.Helper()
	m.eventually("curl -sf -m 5 http://127.0.0.1:8080/", "hello from hello-")
}

// rikctl returns a command that runs rikctl in the server's container.
func (c composed) rikctl(args string) string {
	return c.engine + " exec $(" + c.engine + " ps -q --filter label=com.docker.compose.service=server) rikctl " + args
}

// ready waits until both nodes run an instance.
func (c composed) ready(m *machine) {
	m.Helper()
	m.eventually(c.rikctl("get instances -l rik.dev/workload=hello -o 'jsonpath={.items[*].status.ready}'"), "true true")
	m.eventually(c.rikctl("get nodes -o name")+" | wc -l", "2")
}

// containers returns the IDs of the containers of the server and the nodes.
func (c composed) containers(m *machine) []string {
	m.Helper()
	ids := strings.Fields(m.run(c.engine + " ps -q --filter label=com.docker.compose.project=compose"))
	if len(ids) != 3 {
		m.Errorf("the containers are %q, want those of the server and two nodes", ids)
	}
	return ids
}

// objects returns the names and UIDs of the application, its instances and the nodes.
func (c composed) objects(m *machine) string {
	m.Helper()
	var all strings.Builder
	for _, kind := range []string{"workloads", "instances", "nodes"} {
		all.WriteString(m.run(c.rikctl("get " + kind + ` -o 'jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid} {.spec.nodeName}{"\n"}{end}' | sort`)))
	}
	return all.String()
}

// images returns the IDs of the images.
func (c composed) images(m *machine) string {
	m.Helper()
	return m.run(c.engine + " image inspect -f '{{.Id}}' rik.dev/rik:latest rik.dev/riklet:latest")
}

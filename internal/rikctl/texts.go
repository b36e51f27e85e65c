package rikctl

import "github.com/spf13/cobra"

const rootLong = `rikctl speaks to a rik cluster: it creates workloads, starts instances of them,
shows how they are and takes them away again.

Types can be named in the singular, the plural and short: workload, workloads
and wl are the same.

  rikctl create workload -f web.yaml     a definition; starts nothing
  rikctl create instance -w web -r 3     three instances of it
  rikctl get instances                   how they are
  rikctl logs workload/web -f            what they say`

// text is rik's help for a command of kubectl.
type text struct{ short, long, example string }

var texts = map[string]text{
	"get": {"List objects", `List objects of one or more types as the server tabulates them, or in another form with -o.`, `
rikctl get workloads
rikctl get instances -o wide -w
rikctl get instances -l rik.dev/workload=web --field-selector status.phase=Running
rikctl get instance web-x7k2p -o jsonpath='{.status.phase}'
rikctl get nodes,tenants
rikctl get apps
rikctl get functions -o wide`},
	"apply": {"Create or change objects to be as files say",
		`Create or change objects to be as files say. The server merges: fields that
others set and the files do not mention stay. A field that someone else set to
another value is a conflict, unless --force-conflicts is given.`, `
rikctl apply -f web.yaml
rikctl apply -f nginx-deployment.yaml # name, repo, version, action: deploy
rikctl apply -f manifests/ --dry-run=server
cat web.yaml | rikctl apply -f -`},
	"delete": {"Delete objects",
		`Delete objects and wait until they are gone. Deleting a workload takes its
instances away too. An instance goes when its node has confirmed that nothing of
it is left; --force does not wait for a node that is lost, which will stop the
instance when it comes back.`, `
rikctl delete workload web
rikctl delete app helloworld
rikctl delete instance web-x7k2p --grace-period=5
rikctl delete instance web-x7k2p --force
rikctl delete instances -l rik.dev/workload=web --wait=false`},
	"wait": {"Wait until objects are in a state",
		`Wait until objects have a condition or a value, are created or are gone. Ends
with code 5 when the time is up.`, `
rikctl wait instance/web-x7k2p --for=phase=Running --timeout=60s
rikctl wait instances -l rik.dev/workload=web --for=condition=Ready
rikctl wait workload/web --for=jsonpath='{.status.readyReplicas}'=3
rikctl wait workload/web --for=condition=Available
rikctl wait node --all --for=condition=Ready
rikctl wait instance/web-x7k2p --for=delete`},
	"events": {"List what happened", `List events, the latest last.`, `
rikctl events
rikctl events --for instance/web-x7k2p --watch
rikctl events --types=Warning -A`},
	"label": {"Set or remove labels", `Set labels, or remove one with a name that ends in -.`, `
rikctl label node worker-1 disk=ssd
rikctl label node worker-1 disk-
rikctl label workload web tier=front --overwrite`},
	"annotate": {"Set or remove annotations", `Set annotations, or remove one with a name that ends in -.`, `
rikctl annotate workload web owner=shop-team
rikctl annotate workload web owner-`},
	"patch": {"Change fields of an object", `Change fields of an object by a merge patch, a JSON patch or a strategic merge patch.`, `
rikctl patch workload web --type=merge -p '{"spec":{"replicas":5}}'
rikctl patch node worker-1 --type=json -p '[{"op":"remove","path":"/spec/taints"}]'`},
	"edit": {"Change an object in an editor", `Open an object in $EDITOR and send what changed.`, `
rikctl edit workload web`},
	"diff": {"Show what apply would change",
		`Show what apply would change. Ends with code 0 without differences, 1 with
some, and above 1 on an error.`, `
rikctl diff -f web.yaml`},
	"explain": {"Say what a type's fields mean", `Say what the fields of a type mean.`, `
rikctl explain workload.spec.strategy
rikctl explain instance --recursive`},
	"api-resources": {"List the types that the server has", `List the types that the server has, with their short names.`, `
rikctl api-resources --api-group=rik.dev`},
	"auth": {"Ask what a user may do", `Ask what a user may do.`, `
rikctl auth whoami
rikctl auth can-i create instances
rikctl auth can-i --list`},
}

// topics returns the pages of help that are not about a command.
func topics() []*cobra.Command {
	return []*cobra.Command{
		{Use: "exit-codes", Short: "What the exit codes mean", Long: `The exit codes of rikctl:

  0  done
  1  an error that has no code of its own
  2  the command line or the configuration is wrong; the server was not asked
  3  the object, or its type, does not exist
  4  a conflict: it exists already, or was changed meanwhile
  5  the server was not reached, or something took too long
  6  the server refused what was sent as invalid
  7  the user is not known to the server, or may not do this
  130  the user ended it with Ctrl-C

Several objects in one command: the code is that of the first error.
"rikctl exec" ends with the exit code of the command that it ran, and
"rikctl diff" with 1 if there are differences. "rikctl plan" ends with 1 if
something would change, and with 2 on an error that has no code of its own.`},
		{Use: "configuration", Short: "Where the configuration is found", Long: `The configuration says which cluster rikctl speaks to and as whom. The first of
these that exists is used:

  1. the file given by --config
  2. the file that $RIKCONFIG names
  3. ~/.rik/config.yaml
  4. config.yaml in the data directory of this machine's server
     ($DATABASE_LOCATION, or /var/lib/rik/data), which only root can read

--kubeconfig FILE uses a kubeconfig instead of all of these. A file is YAML or
JSON:

  cluster:
    name: home
    server: https://192.0.2.10:5000
    certificateAuthority: ca.crt      # a path, PEM, or PEM in base64
    clientCertificate: admin.crt      # likewise
    clientKey: admin.key              # likewise
    token: ...                        # instead of a certificate: the token, or a path
  clusters: []                        # others, for "rikctl config use NAME"

$RIK_CLUSTER_NAME and $RIK_CLUSTER_SERVER override cluster.name and
cluster.server.`},
	}
}

package redact

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

const canary = "c4n4ry5ecretv4lue"

// places are texts with a canary in each place where a secret can be.
var places = map[string]string{
	"a URL":                      "pulling https://me:%s@registry.example/v2/ failed",
	"a URL with a token":         "cloning https://%s@git.example/x.git",
	"a signed URL":               "GET https://bucket.example/x?X-Amz-Credential=a&X-Amz-Signature=%s: 403",
	"a URL of a database":        "postgres://rik:%s@db/rik?sslmode=disable",
	"an odd password":            "mysql://rik:p#w%s@db:3306/rik",
	"a header":                   "Authorization: Bearer %s",
	"a header in a map":          "headers=map[Authorization:[Basic %s]]",
	"a cookie":                   "< Set-Cookie: session=%s; HttpOnly",
	"a header of another":        "X-Vault-Token: %s",
	"a bearer":                   "sent bearer %s to the server",
	"an assignment":              "PASSWORD=%s ./run",
	"a prefix":                   "export MYSQL_ROOT_PASSWORD=%s",
	"a flag":                     "run --api-token %s --verbose",
	"a flag with =":              "run --password=%s",
	"quotes":                     `level=info msg="connecting" db.password="%s x"`,
	"JSON":                       `{"user":"me","client_secret":"%s","n":1}`,
	"JSON in JSON":               `{"auths":{"r.example":{"auth":"%s"}}}`,
	"YAML":                       "user:\n  token: %s\n  name: x\n",
	"a kubeconfig":               "users:\n- user:\n    client-key-data: %s\n",
	"a private key":              "-----BEGIN EC PRIVATE KEY-----\n%s\n-----END EC PRIVATE KEY-----",
	"a private key that is cut":  "x -----BEGIN PRIVATE KEY-----\nMIG%s",
	"a join token":               "--token rik1.0123456789abcdef.%s",
	"a join token without words": "joining with rik1." + strings.Repeat("ab", 32) + ".%s",
	"a JWT":                      "used eyJhbGciOiJIUzI1NiJ9.%s.c2lnbmF0dXJl",
	"single quotes":              "token='%s y'",
}

func TestText(t *testing.T) {
	t.Parallel()
	for name, format := range places {
		got := New().Text(fmt.Sprintf(format, canary))
		if strings.Contains(got, canary) {
			t.Errorf("%s: %q", name, got)
		}
		if !strings.Contains(got, Mark) {
			t.Errorf("%s: nothing marks what was removed: %q", name, got)
		}
		if again := New().Text(got); again != got {
			t.Errorf("%s: a second pass changes %q to %q", name, got, again)
		}
	}
}

// What helps to understand a report stays.
func TestTextKeepsTheRest(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`level=INFO msg="instance is running" instance=web-1 node=n-3 image=docker://registry.example/web:1`,
		"secretName: db", "kubeconfigSecretRef: {name: x}", "imagePullSecrets: [a]", "--token-file /etc/rik/token",
		"error: the controller refused the join token", "https://10.0.0.1:5000/version", "rik1 is a prefix", "tokenExpirationSeconds: 3600",
		"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "node rik0 has 10.62.1.1/24",
	} {
		if got := New().Text(text); got != text {
			t.Errorf("Text(%q) = %q", text, got)
		}
	}
}

const manifest = `
apiVersion: rik.dev/v1alpha1
kind: Workload
metadata:
  name: web
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"password":"CANARY1"}}'
    example.org/note: CANARY2
    rik.dev/restartedAt: "2026-11-28T12:00:00Z"
    rik.dev/confirmed: "token=CANARY3"
  managedFields: [{manager: CANARY4}]
spec:
  replicas: 2
  containers:
  - name: main
    image: docker://me:CANARY5@registry.example/web:1
    command: [/bin/server, --listen, ":8080", --password=CANARY6, --token, CANARY7, CANARY8, -pCANARY17, --CANARY18]
    args: [CANARY9, -v, "url=https://x:CANARY10@h"]
    env:
    - {name: LEVEL, value: CANARY11}
    - {name: DB, valueFrom: {secretKeyRef: {name: db, key: password}}}
    livenessProbe: {exec: {command: [sh, -c, "curl -H 'Authorization: Bearer CANARY12' x"]}}
  taints: [{key: dedicated}]
  kubeconfigSecretRef: {name: x, key: kubeconfig}
  app: {repo: "https://host/x?sig=CANARY13"}
  kubeconfig: "users: [{user: {token: CANARY14}}]"
status:
  message: 'pulling "https://u:CANARY15@h/": denied'
  conditions: [{type: Ready, status: "False", message: "password: CANARY16"}]
`

func TestObject(t *testing.T) {
	t.Parallel()
	var object map[string]any
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(manifest, "CANARY", canary)), &object); err != nil {
		t.Fatal(err)
	}
	New().Object(object)
	out, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(out), canary) {
		t.Errorf("a canary is left:\n%s", out)
	}
	for _, want := range []string{"name: web", "replicas: 2", "/bin/server", "--listen", "--password=REDACTED", "--token", "name: LEVEL", "key: password", "name: db", "registry.example/web:1", "2026-11-28T12:00:00Z", "type: Ready", "key: dedicated", "key: kubeconfig", "kubeconfig: REDACTED"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is lost:\n%s", want, out)
		}
	}
}

func TestSecretsAndConfigMaps(t *testing.T) {
	t.Parallel()
	r := New()
	secret := map[string]any{"kind": "Secret", "metadata": map[string]any{"name": "db"}, "type": "Opaque", "data": map[string]any{
		"user": base64.StdEncoding.EncodeToString([]byte("rik-admin")), "anything": base64.StdEncoding.EncodeToString([]byte(canary)),
	}, "stringData": map[string]any{"x": "plain-" + canary}}
	r.Object(secret)
	settings := map[string]any{"kind": "ConfigMap", "data": map[string]any{"level": "debug", "api-key": canary, "app.yaml": "port: 80\ndb:\n  password: " + canary}, "binaryData": map[string]any{"b": canary}}
	r.Object(settings)
	for name, o := range map[string]map[string]any{"the Secret": secret, "the ConfigMap": settings} {
		out, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), canary) || strings.Contains(string(out), base64.StdEncoding.EncodeToString([]byte(canary))) {
			t.Errorf("%s: %s", name, out)
		}
	}
	if diff := cmp.Diff("port: 80\ndb:\n  password: REDACTED", settings["data"].(map[string]any)["app.yaml"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if level := settings["data"].(map[string]any)["level"]; level != "debug" {
		t.Errorf("level = %v", level)
	}
	// The value of a Secret is removed from texts that do not say what it is.
	for _, text := range []string{"hello " + canary, "again " + base64.StdEncoding.EncodeToString([]byte(canary)), "user rik-admin"} {
		if got := r.Scrub(text); strings.Contains(got, canary) || !strings.Contains(got, Mark) {
			t.Errorf("Scrub(%q) = %q", text, got)
		}
	}
	if got := r.Scrub("level=debug and nothing else"); got != "level=debug and nothing else" {
		t.Errorf("Scrub removes ordinary words: %q", got)
	}
}

// TestScrubRemovesAllForms draws values, and texts that contain them.
func TestScrubRemovesAllForms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[!-~]{8,60}`).Draw(t, "value")
		r := New()
		r.Learn(value)
		encoded, err := json.Marshal(map[string]string{"a": value, "b": base64.StdEncoding.EncodeToString([]byte(value))})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(value, Mark) || strings.Contains(Mark, value) {
			return
		}
		escaped, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		text := "before " + value + " after\n" + string(encoded)
		if got := r.Scrub(text); strings.Contains(got, value) || strings.Contains(got, base64.StdEncoding.EncodeToString([]byte(value))) || strings.Contains(got, string(escaped)) {
			t.Fatalf("%q is left in %q", value, got)
		}
	})
}

// TestLearnedKubeconfig makes sure that the ordinary lines of a value do not disappear everywhere.
func TestLearnedKubeconfig(t *testing.T) {
	t.Parallel()
	r := New()
	r.Learn("apiVersion: v1\nkind: Config\ncurrent-context: east\nusers:\n- name: me\n  user:\n    token: " + canary + "\n    client-key-data: LS0tLS1CRUdJTiBF\n")
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: ConfigMap\n": "apiVersion: v1\nkind: ConfigMap\n",
		"it is " + canary:                   "it is " + Mark,
		"LS0tLS1CRUdJTiBF":                  Mark,
	} {
		if got := r.Scrub(text); got != want {
			t.Errorf("Scrub(%q) = %q, want %q", text, got, want)
		}
	}
}

package pull_test

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/multicluster/cluster/pull"
	"rik.dev/rik/internal/testkit/golden"
)

// canary stands for the credentials.
const canary = "c4n4ry-5ecret"

func options() pull.Options {
	return pull.Options{
		Cluster: "east", ClusterUID: "0e4c1da4-0277-4088-9f37-8f445cbe8e46", Image: "registry.example/syncer:1", Upstream: []byte(canary),
		Carried: []schema.GroupResource{{Group: "apps", Resource: "deployments"}, {Resource: "services"}, {Resource: "configmaps"}, {Resource: "configmaps"}},
	}
}

func TestRenderGolden(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pull.Options){
		"kubernetes": func(o *pull.Options) { o.Policies = true },
		"rik": func(o *pull.Options) {
			o.Rik, o.Image, o.Downstream = true, "oci:/var/lib/images/syncer", []byte(canary)
			o.Flags = []string{"--max-deletes=7"}
		},
		"nothing-carried": func(o *pull.Options) { o.Carried = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options()
			change(&o)
			objects, err := pull.Render(o)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			for _, object := range objects {
				data, err := yaml.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				got.WriteString("---\n")
				got.Write(data)
			}
			if strings.Contains(got.String(), canary) {
				t.Error("the credentials are there in clear") // the data of a Secret is base64
			}
			golden.Compare(t, name+".golden", got.Bytes())
		})
	}
}

// New credentials replace the agent, and unchanged ones do not.
func TestRenderFollowsCredentials(t *testing.T) {
	t.Parallel()
	render := func(upstream string) string {
		t.Helper()
		o := options()
		o.Upstream = []byte(upstream)
		objects, err := pull.Render(o)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := yaml.Marshal(objects[len(objects)-1].Object)
		if err != nil {
			t.Fatal(err)
		}
		return string(agent)
	}
	first, again, other := render("a"), render("a"), render("b")
	if first != again || first == other {
		t.Error("the agent does not follow its credentials")
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pull.Options){
		"no image":       func(o *pull.Options) { o.Image = "" },
		"no credentials": func(o *pull.Options) { o.Upstream = nil },
		"no cluster":     func(o *pull.Options) { o.Cluster = "" },
		"no UID":         func(o *pull.Options) { o.ClusterUID = "" },
	} {
		o := options()
		change(&o)
		if objects, err := pull.Render(o); err == nil {
			t.Errorf("%s: Render = %v, want an error", name, objects)
		}
	}
}

// Removal contains all rendered objects that are cluster-scoped, and the namespace.
func TestRemovalIsWhole(t *testing.T) {
	t.Parallel()
	o := options()
	o.Policies = true
	objects, err := pull.Render(o)
	if err != nil {
		t.Fatal(err)
	}
	removed := map[string]bool{}
	for _, object := range pull.Removal(o.ClusterUID) {
		removed[object.GetKind()+"/"+object.GetNamespace()+"/"+object.GetName()] = true
	}
	for _, object := range objects {
		gone := removed[object.GetKind()+"/"+object.GetNamespace()+"/"+object.GetName()] || removed["Namespace//"+object.GetNamespace()]
		if !gone {
			t.Errorf("%s %s/%s stays", object.GetKind(), object.GetNamespace(), object.GetName())
		}
		for key, value := range pull.Labels(o.ClusterUID) {
			if object.GetLabels()[key] != value {
				t.Errorf("%s %s lacks the label %s", object.GetKind(), object.GetName(), key)
			}
		}
	}
}

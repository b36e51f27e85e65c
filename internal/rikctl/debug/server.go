package debug

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/version"
)

// requestTimeout bounds each request, so that a server that does not answer does not stop the rest.
const requestTimeout = 30 * time.Second

// pageSize is the number of objects in one answer.
const pageSize = 500

// types are the types of objects that help to understand a cluster. A server has only some of them.
// Secrets come first: their values are then known, and removed from all other files.
var types = []schema.GroupResource{
	{Resource: "secrets"},
	{Resource: "configmaps"}, {Resource: "namespaces"}, {Resource: "serviceaccounts"}, {Resource: "events"},
	{Group: "events.k8s.io", Resource: "events"}, {Group: "coordination.k8s.io", Resource: "leases"},
	{Group: "rik.dev", Resource: "nodes"}, {Group: "rik.dev", Resource: "tenants"}, {Group: "rik.dev", Resource: "workloads"},
	{Group: "rik.dev", Resource: "workloadrevisions"}, {Group: "rik.dev", Resource: "instances"},
	{Group: "apps", Resource: "deployments"}, {Group: "apps", Resource: "replicasets"},
	{Group: "workload.kcp.dev", Resource: "clusters"}, {Group: "apiresource.kcp.dev", Resource: "apiresourceimports"},
	{Group: "apiresource.kcp.dev", Resource: "negotiatedapiresources"}, {Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
}

// paths are the state of the server itself.
var paths = map[string][]string{
	"server/version.json": {"/version"}, "server/healthz.txt": {"/healthz", "verbose"}, "server/livez.txt": {"/livez", "verbose"},
	"server/readyz.txt": {"/readyz", "verbose"}, "server/metrics.txt": {"/metrics"},
}

// collectServer adds what the API offers.
func (t *tool) collectServer(ctx context.Context, b *bundle, o options) {
	b.add("rikctl.txt", fmt.Sprintf("%s %s, commit %s of %s\n", cmdline.Program, version.Version, version.Commit, version.Date), nil)
	config, err := t.Getter.ToRESTConfig()
	if err != nil {
		b.add("server", "", err)
		return
	}
	learnCredentials(b, config)
	config = rest.CopyConfig(config)
	config.Timeout = requestTimeout
	config.WarningHandler = rest.NoWarnings{}
	objects, found, err := clients(config)
	if err != nil {
		b.add("objects", "", err)
		return
	}
	// An error of discovery may come with a partial answer.
	served, err := found.ServerPreferredResources()
	if err != nil {
		b.add("objects/types.txt", "", err)
	}
	if len(served) > 0 {
		var nodes, instances []unstructured.Unstructured
		for _, wanted := range types {
			list := t.collectObjects(ctx, b, objects, served, wanted, o.objects)
			switch wanted.String() {
			case "nodes.rik.dev":
				nodes = list
			case "instances.rik.dev":
				instances = list
			}
		}
		b.add("summary.txt", summary(nodes, instances), nil)
	}
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		data, err := get(ctx, found.RESTClient(), paths[name])
		cancel()
		b.text(name, data, err)
	}
}

func clients(config *rest.Config) (dynamic.Interface, *discovery.DiscoveryClient, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	found, err := discovery.NewDiscoveryClientForConfig(config)
	return objects, found, err
}

// learnCredentials makes the bundle remove what rikctl itself shows to the server.
func learnCredentials(b *bundle, config *rest.Config) {
	for _, secret := range []string{config.BearerToken, config.Password, string(config.KeyData), base64.StdEncoding.EncodeToString(config.KeyData)} {
		b.redactor.Learn(secret)
	}
}

func get(ctx context.Context, c rest.Interface, path []string) ([]byte, error) {
	request := c.Get().AbsPath(path[0])
	for _, parameter := range path[1:] {
		request = request.Param(parameter, "")
	}
	result := request.Do(ctx)
	data, err := result.Raw()
	if err != nil && len(data) > 0 {
		// The server says what is not healthy in the body of an error.
		return data, nil
	}
	return data, errors.Join(err, result.Error())
}

// collectObjects adds the objects of a type, without secrets, and returns them. It adds nothing if the
// server does not have the type.
func (t *tool) collectObjects(ctx context.Context, b *bundle, c dynamic.Interface, served []*metav1.APIResourceList, wanted schema.GroupResource, most int) []unstructured.Unstructured {
	resource, ok := find(served, wanted)
	if !ok {
		return nil
	}
	list, err := listAll(ctx, c.Resource(resource), most)
	var out strings.Builder
	for i := range list {
		b.redactor.Object(list[i].Object)
		text, marshalErr := yaml.Marshal(list[i].Object)
		if marshalErr != nil {
			err = errors.Join(err, marshalErr)
			continue
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	if len(list) == 0 && err == nil {
		out.WriteString("# none\n")
	}
	b.add("objects/"+wanted.String()+".yaml", out.String(), err)
	return list
}

// find returns the preferred version of a type that can be listed.
func find(served []*metav1.APIResourceList, wanted schema.GroupResource) (schema.GroupVersionResource, bool) {
	for _, list := range served {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || gv.Group != wanted.Group {
			continue
		}
		for i := range list.APIResources {
			if list.APIResources[i].Name == wanted.Resource && slices.Contains(list.APIResources[i].Verbs, "list") {
				return gv.WithResource(wanted.Resource), true
			}
		}
	}
	return schema.GroupVersionResource{}, false
}

// listAll lists objects page by page, up to a number of them.
func listAll(ctx context.Context, c dynamic.ResourceInterface, most int) ([]unstructured.Unstructured, error) {
	var all []unstructured.Unstructured
	options := metav1.ListOptions{Limit: int64(min(pageSize, most))}
	for {
		page, err := c.List(ctx, options)
		if err != nil {
			return all, err
		}
		for i := range page.Items {
			if len(all) == most {
				return all, fmt.Errorf("only the first %d objects; --max-objects reads more", most)
			}
			// The items of a list may lack their type.
			item := page.Items[i]
			if item.GetKind() == "" {
				item.SetKind(strings.TrimSuffix(page.GetKind(), "List"))
				item.SetAPIVersion(page.GetAPIVersion())
			}
			all = append(all, item)
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return all, nil
		}
		if len(all) >= most {
			return all, fmt.Errorf("only the first %d objects; --max-objects reads more", most)
		}
	}
}

// summary shows the conditions of nodes, and what instances are not running.
func summary(nodes, instances []unstructured.Unstructured) string {
	var s strings.Builder
	fmt.Fprintf(&s, "NODES (%d)\n", len(nodes))
	for i := range nodes {
		fmt.Fprintf(&s, "%s\n", nodes[i].GetName())
		writeConditions(&s, nodes[i].Object)
	}
	phases := map[string]int{}
	var trouble strings.Builder
	for i := range instances {
		phase, _, _ := unstructured.NestedString(instances[i].Object, "status", "phase")
		phases[phase]++
		if phase == "Running" || phase == "Completed" {
			continue
		}
		node, _, _ := unstructured.NestedString(instances[i].Object, "spec", "nodeName")
		fmt.Fprintf(&trouble, "%s/%s is %s on node %q\n", instances[i].GetNamespace(), instances[i].GetName(), phase, node)
		writeConditions(&trouble, instances[i].Object)
	}
	fmt.Fprintf(&s, "\nINSTANCES (%d)\n", len(instances))
	for _, phase := range slices.Sorted(maps.Keys(phases)) {
		fmt.Fprintf(&s, "%-12s %d\n", phase, phases[phase])
	}
	return s.String() + "\n" + trouble.String()
}

func writeConditions(s *strings.Builder, object map[string]any) {
	conditions, _, _ := unstructured.NestedSlice(object, "status", "conditions")
	for _, c := range conditions {
		if fields, ok := c.(map[string]any); ok {
			fmt.Fprintf(s, "  %v=%v %v: %v (since %v)\n", fields["type"], fields["status"], fields["reason"], fields["message"], fields["lastTransitionTime"])
		}
	}
}

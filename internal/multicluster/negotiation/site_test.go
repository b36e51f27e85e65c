package negotiation_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apiresourcev1alpha1 "rik.dev/rik/api/apiresource/v1alpha1"
	"rik.dev/rik/internal/multicluster/negotiation"
	"rik.dev/rik/internal/multicluster/negotiation/plan"
	"rik.dev/rik/internal/testkit/kcptest"
	"rik.dev/rik/internal/testkit/leak"
	"rik.dev/rik/internal/testkit/poll"
	"rik.dev/rik/internal/testkit/served"
)

func TestMain(m *testing.M) {
	code := kcptest.RunMain(m)
	shared.stop()
	os.Exit(leak.After(code))
}

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(apiextensionsv1.AddToScheme(s))
	utilruntime.Must(apiresourcev1alpha1.AddToScheme(s))
	utilruntime.Must(metav1.AddMetaToScheme(s))
	return s
}()

// exampleGroup is the group of the widgets in testdata.
const exampleGroup = "example.org"

// site is a real kcp and a running controller. Its widgets have their own group. In the names
// that a test uses, example.org stands for that group.
type site struct {
	*kcptest.Server
	c     client.Client
	group string
}

// local replaces the example group in a name by the group of the site's widgets.
func (s *site) local(name string) string { return strings.ReplaceAll(name, exampleGroup, s.group) }

// newSite starts both for one test that publishes types itself.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Server: kcptest.Start(t), group: exampleGroup}
	stop, err := s.run(kcptest.LoopbackConfig(s.Server), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return s
}

// run starts a controller, and the client of the tests.
func (s *site) run(config *rest.Config, autoPublish bool) (stop func() error, err error) {
	if s.c, err = client.New(kcptest.LoopbackConfig(s.Server), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	controller, err := negotiation.New(negotiation.Config{Rest: config, AutoPublish: autoPublish, Recheck: 100 * time.Millisecond, Logger: logger()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- controller.Run(ctx) }()
	return func() error { cancel(); return <-ended }, nil
}

// shared is the site of all tests that do not need their own kcp. Its controller publishes what
// it negotiates.
var shared = &common{stop: func() {}}

type common struct {
	start sync.Once
	site  site
	err   error
	stop  func()
	sites atomic.Int64
	// before contains the actions of tests before a request to a CRD, by the CRD's name.
	before sync.Map
}

// publishing returns the shared site with widgets for one test.
func publishing(t *testing.T) *site {
	t.Helper()
	server := kcptest.Shared(t)
	shared.start.Do(func() {
		shared.site.Server = server
		config := kcptest.LoopbackConfig(server)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return interceptor{next: next, before: &shared.before} })
		stop, err := shared.site.run(config, true)
		shared.err = err
		if err == nil {
			shared.stop = func() { _ = stop() }
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &site{Server: server, c: shared.site.c, group: fmt.Sprintf("t%d.%s", shared.sites.Add(1), exampleGroup)}
}

// interceptor runs an action before a controller's request to a CRD is sent.
type interceptor struct {
	next   http.RoundTripper
	before *sync.Map
}

// RoundTrip implements http.RoundTripper.
func (i interceptor) RoundTrip(r *http.Request) (*http.Response, error) {
	const crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	if name, ok := strings.CutPrefix(r.URL.Path, crds); ok {
		if do, armed := i.before.LoadAndDelete(r.Method + " " + name); armed {
			do.(func())()
		}
	}
	return i.next.RoundTrip(r)
}

// beforeCRD runs an action once, before the controller's next request with the method to the CRD
// of the widgets. At that time the controller has read the objects and not yet changed the CRD.
// path is below the CRD.
func (s *site) beforeCRD(t *testing.T, method, path string, do func()) (done <-chan struct{}) {
	t.Helper()
	finished := make(chan struct{})
	shared.before.Store(method+" "+s.local("widgets.example.org")+path, func() {
		defer close(finished)
		do()
	})
	return finished
}

// logger prints the controller's log if RIK_TEST_LOG is set.
func logger() *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(os.Getenv(served.EnvLog))); err != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// offer returns a CRD from testdata as the import of a cluster.
func (s *site) offer(t *testing.T, location, file string) *apiresourcev1alpha1.APIResourceImport {
	t.Helper()
	crd := s.definition(t, file)
	spec, err := plan.SpecOf(crd, crd.Spec.Versions[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	i := &apiresourcev1alpha1.APIResourceImport{Spec: apiresourcev1alpha1.APIResourceImportSpec{
		CommonAPIResourceSpec: *spec, Location: location, SchemaUpdateStrategy: apiresourcev1alpha1.UpdateUnpublished}}
	i.Name = apiresourcev1alpha1.ImportName(spec.GVR(), location)
	return i
}

func (s *site) definition(t *testing.T, file string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(s.local(string(data))), crd); err != nil {
		t.Fatal(err)
	}
	return crd
}

// version returns an import with another version.
func version(i *apiresourcev1alpha1.APIResourceImport, name string) *apiresourcev1alpha1.APIResourceImport {
	i = i.DeepCopy()
	i.Spec.GroupVersion.Version = name
	i.Name = apiresourcev1alpha1.ImportName(i.Spec.GVR(), i.Spec.Location)
	return i
}

func (s *site) create(t *testing.T, o client.Object) {
	t.Helper()
	if err := s.c.Create(t.Context(), o); err != nil {
		t.Fatalf("creating %T %s: %v", o, o.GetName(), err)
	}
}

func (s *site) delete(t *testing.T, o client.Object, options ...client.DeleteOption) {
	t.Helper()
	if err := s.c.Delete(t.Context(), o, options...); err != nil {
		t.Fatalf("deleting %T %s: %v", o, o.GetName(), err)
	}
}

// patch does the same as "kubectl patch --type=merge".
func (s *site) patch(t *testing.T, o client.Object, patch string) {
	t.Helper()
	if err := s.c.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Fatalf("patching %s: %v", o.GetName(), err)
	}
}

func (s *site) named(name string) *apiresourcev1alpha1.NegotiatedAPIResource {
	return &apiresourcev1alpha1.NegotiatedAPIResource{ObjectMeta: metav1.ObjectMeta{Name: s.local(name)}}
}

// shows waits until the imports and negotiated resources of a type have these columns in kubectl:
//
//	import LOCATION VERSION COMPATIBLE/AVAILABLE
//	negotiated VERSION publish=PUBLISH PUBLISHED/ENFORCED
func (s *site) shows(t *testing.T, resource string, want ...string) {
	t.Helper()
	poll.Until(t, served.Timeout, "kubectl shows what is expected", func(ctx context.Context) error {
		got, err := s.table(ctx, resource)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		return err
	})
}

func (s *site) table(ctx context.Context, resource string) ([]string, error) {
	var imports apiresourcev1alpha1.APIResourceImportList
	var negotiated apiresourcev1alpha1.NegotiatedAPIResourceList
	if err := errors.Join(s.c.List(ctx, &imports), s.c.List(ctx, &negotiated)); err != nil {
		return nil, err
	}
	var out []string
	for _, i := range imports.Items {
		if i.Spec.GVR().GroupResource().String() == s.local(resource) {
			out = append(out, fmt.Sprintf("import %s %s %s/%s", i.Spec.Location, i.Spec.GroupVersion.Version,
				status(i.Status.Conditions, apiresourcev1alpha1.ConditionCompatible), status(i.Status.Conditions, apiresourcev1alpha1.ConditionAvailable)))
		}
	}
	for _, n := range negotiated.Items {
		if n.Spec.GVR().GroupResource().String() == s.local(resource) {
			line := fmt.Sprintf("negotiated %s publish=%v %s/%s", n.Spec.GroupVersion.Version, n.Spec.Publish,
				status(n.Status.Conditions, apiresourcev1alpha1.ConditionPublished), status(n.Status.Conditions, apiresourcev1alpha1.ConditionEnforced))
			if inUse := status(n.Status.Conditions, apiresourcev1alpha1.ConditionInUse); inUse != "" {
				line += " InUse=" + inUse
			}
			out = append(out, line)
		}
	}
	slices.Sort(out)
	return out, nil
}

// status returns the status of a condition, with the reason if it is False.
func status(conditions []metav1.Condition, kind string) string {
	for _, c := range conditions {
		if c.Type != kind {
			continue
		}
		if c.Status == metav1.ConditionFalse && kind != apiresourcev1alpha1.ConditionEnforced {
			return fmt.Sprintf("%s(%s)", c.Status, c.Reason)
		}
		return string(c.Status)
	}
	return ""
}

// serves waits until discovery has exactly these versions of a type.
func (s *site) serves(t *testing.T, resource schema.GroupResource, versions ...string) {
	t.Helper()
	poll.Until(t, served.Timeout, fmt.Sprintf("%s is served in versions %v", resource, versions), func(context.Context) error {
		groups, err := s.Client.Discovery().ServerGroups()
		if err != nil {
			return err
		}
		var got []string
		for _, g := range groups.Groups {
			if g.Name != s.local(resource.Group) {
				continue
			}
			for _, v := range g.Versions {
				list, err := s.Client.Discovery().ServerResourcesForGroupVersion(v.GroupVersion)
				if err != nil {
					return err
				}
				if slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource }) {
					got = append(got, v.Version)
				}
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, versions) {
			return fmt.Errorf("it is served in %v", got)
		}
		return nil
	})
}

func (s *site) crd(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	return crd, s.c.Get(ctx, client.ObjectKey{Name: s.local(name)}, crd)
}

// store stores an object. It retries, because a published type is available after a moment.
func (s *site) store(t *testing.T, object string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(s.local(object)), &u.Object); err != nil {
		t.Fatal(err)
	}
	poll.Until(t, served.Timeout, "the object is stored", func(ctx context.Context) error {
		// Use strict validation: a schema that is not served yet then refuses unknown fields.
		err := s.c.Create(ctx, u, client.FieldValidation(metav1.FieldValidationStrict))
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	return u
}

// read returns the current spec of an object.
func (s *site) read(t *testing.T, u *unstructured.Unstructured) map[string]any {
	t.Helper()
	got := &unstructured.Unstructured{}
	got.SetGroupVersionKind(u.GroupVersionKind())
	if err := s.c.Get(t.Context(), client.ObjectKeyFromObject(u), got); err != nil {
		t.Fatalf("reading %s: %v", u.GetName(), err)
	}
	spec, _, err := unstructured.NestedMap(got.Object, "spec")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// specFields returns the fields of .spec in a negotiated resource.
func specFields(t *testing.T, n *apiresourcev1alpha1.NegotiatedAPIResource) []string {
	t.Helper()
	props := &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(n.Spec.OpenAPIV3Schema.Raw, props); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(props.Properties["spec"].Properties))
}

// negotiates waits until a negotiated resource has exactly these fields in .spec.
func (s *site) negotiates(t *testing.T, name string, fields ...string) {
	t.Helper()
	poll.Until(t, served.Timeout, fmt.Sprintf("%s has the fields %v", name, fields), func(ctx context.Context) error {
		n := s.named(name)
		if err := s.c.Get(ctx, client.ObjectKeyFromObject(n), n); err != nil {
			return err
		}
		if got := specFields(t, n); !slices.Equal(got, fields) {
			return fmt.Errorf("it has %v", got)
		}
		return nil
	})
}

package access

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	rikv1alpha1 "rik.dev/rik/api/rik/v1alpha1"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/rikctl/scheme"
)

// Factory has the streams of a command line, and makes the clients of the API server that the
// configuration names. It reads the configuration when a command first needs it, and once.
type Factory struct {
	Streams genericiooptions.IOStreams
	// Getter reads the configuration and knows the server's types.
	Getter *getter
	// Kube is the factory of kubectl's commands. It uses the Getter.
	Kube cmdutil.Factory
}

// NewFactory returns the Factory of one command line.
func NewFactory(source config.Source, streams genericiooptions.IOStreams) *Factory {
	g := newGetter(source, streams.ErrOut)
	return &Factory{Streams: streams, Getter: g, Kube: cmdutil.NewFactory(g)}
}

// Client returns a client for objects of rik's types, and of the Kubernetes types in the scheme.
func (f *Factory) Client() (client.WithWatch, error) {
	restConfig, err := f.Getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	mapper, err := f.Getter.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	return client.NewWithWatch(restConfig, client.Options{Scheme: scheme.Scheme, Mapper: mapper})
}

// Namespace returns the namespace in which the command acts.
func (f *Factory) Namespace() (string, error) {
	ns, _, err := f.Getter.ToRawKubeConfigLoader().Namespace()
	return ns, err
}

// NamespacedClient returns the client and the namespace, for a command that needs both.
func (f *Factory) NamespacedClient() (client.WithWatch, string, error) {
	namespace, err := f.Namespace()
	if err != nil {
		return nil, "", err
	}
	c, err := f.Client()
	return c, namespace, err
}

// RESTClient returns a client for subresources that stream, such as log and exec, and the
// configuration of its transport.
func (f *Factory) RESTClient() (*rest.RESTClient, *rest.Config, error) {
	restConfig, err := f.Getter.ToRESTConfig()
	if err != nil {
		return nil, nil, err
	}
	restConfig.APIPath = "/apis"
	restConfig.GroupVersion = &rikv1alpha1.SchemeGroupVersion
	restConfig.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
	c, err := rest.RESTClientFor(restConfig)
	return c, restConfig, err
}

// Raw requests a path that is not an API object.
func (f *Factory) Raw(ctx context.Context, path []string, query map[string]string) ([]byte, error) {
	c, _, err := f.RESTClient()
	if err != nil {
		return nil, err
	}
	request := c.Get().AbsPath(path...)
	for key, value := range query {
		request = request.Param(key, value)
	}
	// Use Error, because DoRaw does not parse the server's message.
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// Read requests a path that is not an API object, and decodes the JSON of the answer.
func (f *Factory) Read(ctx context.Context, path string, into any) error {
	data, err := f.Raw(ctx, []string{path}, nil)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

package access

import (
	"errors"
	"io"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/disk"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"rik.dev/rik/internal/rikctl/cmdline"
	"rik.dev/rik/internal/rikctl/config"
	"rik.dev/rik/internal/version"
)

// discoveryTTL is how long discovery results stay in the cache. A type that is not in the cache
// causes a new discovery at once.
const discoveryTTL = 10 * time.Minute

var _ genericclioptions.RESTClientGetter = (*getter)(nil)

// getter gives kubectl's commands access to the cluster in rik's configuration.
type getter struct {
	Source  config.Source
	warn    io.Writer
	once    sync.Once
	loader  clientcmd.ClientConfig
	Found   *config.Found
	Err     error
	mapOnce sync.Once
	mapper  meta.RESTMapper
	disc    discovery.CachedDiscoveryInterface
	mapErr  error

	Kubeconfig string
	Context    string
	namespace  string
	timeout    string
	as         string
	asGroups   []string
}

func newGetter(source config.Source, warn io.Writer) *getter {
	return &getter{Source: source, warn: warn}
}

func (g *getter) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&g.Source.Flag, "config", g.Source.Flag, "configuration file; see \"rikctl config\"")
	flags.StringVar(&g.Kubeconfig, "kubeconfig", "", "a kubeconfig to use instead of rik's configuration")
	flags.StringVar(&g.Context, "context", "", "context of the kubeconfig")
	flags.StringVarP(&g.namespace, "namespace", "n", "", "namespace to act in (default \"default\")")
	flags.StringVar(&g.timeout, "request-timeout", "0", "time that a single request may take, such as 30s; 0 for no limit")
	flags.StringVar(&g.as, "as", "", "user to act as, for administrators")
	flags.StringArrayVar(&g.asGroups, "as-group", nil, "group to act as, with --as; may be repeated")
}

// load reads the configuration once.
func (g *getter) load() {
	g.once.Do(func() {
		overrides := &clientcmd.ConfigOverrides{CurrentContext: g.Context, Timeout: g.timeout}
		overrides.Context.Namespace = g.namespace
		overrides.AuthInfo.Impersonate = g.as
		overrides.AuthInfo.ImpersonateGroups = g.asGroups
		if g.Kubeconfig != "" {
			rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: g.Kubeconfig}
			g.loader = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
			if _, err := g.loader.ClientConfig(); err != nil {
				g.Err = config.WrongKubeconfig(g.Kubeconfig, err)
				g.loader = failing{g.Err}
			}
			return
		}
		if g.Context != "" {
			g.Err = cmdline.New(cmdline.Program, errors.New("--context names a context of a kubeconfig: give --kubeconfig too"))
			g.loader = failing{g.Err}
			return
		}
		g.Found, g.Err = config.Find(g.Source)
		if g.Err != nil {
			g.loader = failing{g.Err}
			return
		}
		g.loader = clientcmd.NewDefaultClientConfig(*g.Found.Client, overrides)
	})
}

// Server returns the address of the cluster for messages; empty if the configuration has none.
func (g *getter) Server() string {
	if g.loader == nil || g.Err != nil {
		return ""
	}
	restConfig, err := g.loader.ClientConfig()
	if err != nil {
		return ""
	}
	return restConfig.Host
}

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter.
func (g *getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	g.load()
	return g.loader
}

// ToRESTConfig implements genericclioptions.RESTClientGetter.
func (g *getter) ToRESTConfig() (*rest.Config, error) {
	restConfig, err := g.ToRawKubeConfigLoader().ClientConfig()
	if err != nil {
		return nil, err
	}
	restConfig.UserAgent = cmdline.Program + "/" + version.Version
	// The server has priority and fairness, so a limit in the client would only slow scripts
	// down.
	restConfig.QPS, restConfig.Burst = -1, -1
	if g.Found != nil && len(g.Found.File.Cluster.Servers) > 0 {
		restConfig.Dial = dialAny(g.Found.File.Cluster)
	}
	restConfig.WarningHandler = rest.NewWarningWriter(g.warn, rest.WarningWriterOptions{Deduplicate: true})
	return restConfig, nil
}

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (g *getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	g.loadMapper()
	return g.disc, g.mapErr
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (g *getter) ToRESTMapper() (meta.RESTMapper, error) {
	g.loadMapper()
	return g.mapper, g.mapErr
}

func (g *getter) loadMapper() {
	g.mapOnce.Do(func() {
		restConfig, err := g.ToRESTConfig()
		if err != nil {
			g.mapErr = err
			return
		}
		if g.disc, g.mapErr = g.discovery(restConfig); g.mapErr != nil {
			return
		}
		g.mapper = aliases{restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(g.disc), g.disc,
			func(warning string) { _, _ = io.WriteString(g.warn, "warning: "+warning+"\n") })}
	})
}

// discovery caches the server's types on disk, per server. For a user without a home directory
// there is no cache.
func (g *getter) discovery(restConfig *rest.Config) (discovery.CachedDiscoveryInterface, error) {
	if g.Source.Home == "" {
		client, err := discovery.NewDiscoveryClientForConfig(restConfig)
		if err != nil {
			return nil, err
		}
		return memory.NewMemCacheClient(client), nil
	}
	cache := filepath.Join(g.Source.Home, ".rik", "cache")
	return disk.NewCachedDiscoveryClientForConfig(restConfig,
		filepath.Join(cache, "discovery", notInNames.ReplaceAllString(restConfig.Host, "_")),
		filepath.Join(cache, "http"), discoveryTTL)
}

// notInNames matches characters that a URL may have and a directory name should not.
var notInNames = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

// failing is the loader for a configuration that was not found.
type failing struct{ err error }

func (f failing) RawConfig() (api.Config, error)       { return api.Config{}, f.err }
func (f failing) ClientConfig() (*rest.Config, error)  { return nil, f.err }
func (f failing) Namespace() (string, bool, error)     { return "", false, f.err }
func (f failing) ConfigAccess() clientcmd.ConfigAccess { return clientcmd.NewDefaultPathOptions() }

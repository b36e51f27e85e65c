package apiserver

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/uuid"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"

	"rik.dev/rik/internal/apiserver/clusterid"
)

// found is the result of findCluster: the state of the cluster to which this server belongs.
type found struct {
	start     clusterid.Start
	situation clusterid.Situation
}

// findCluster compares the data directory with the datastore, before any key is created or
// anything is written. It refuses a datastore that does not belong to the directory.
func (s *Server) findCluster(ctx context.Context) error {
	file, err := clusterid.Read(s.cfg.DataDir)
	if err != nil {
		return err
	}
	s.found.situation = clusterid.Situation{
		Dir: s.cfg.DataDir, Datastore: s.cfg.datastore().Describe(), File: file, NewCluster: s.cfg.NewCluster,
		Used: hasServed(s.cfg),
	}
	err = s.withStore(ctx, func(ctx context.Context, store clusterid.Store) (err error) {
		if s.found.situation.Stored, err = store.Load(ctx); err != nil {
			return err
		}
		s.found.situation.Empty, err = store.Empty(ctx)
		return err
	})
	if err != nil {
		return err
	}
	s.found.start, err = clusterid.Find(s.found.situation)
	return err
}

// hasServed reports whether a server without an identity has run on the data directory: there
// is a token for nodes, or the audit log has entries.
func hasServed(cfg Config) bool {
	for _, file := range []string{filepath.Join(cfg.DataDir, NodeTokenFile), filepath.Join(cfg.DataDir, "audit.log"), cfg.AuditLog} {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Size() > 0 {
			return true
		}
	}
	return false
}

// bindCluster compares the keys with those that the cluster was used with, and stores the
// identity in the directory and in the datastore.
func (s *Server) bindCluster(ctx context.Context) error {
	keys, err := s.creds.fingerprints()
	if err != nil {
		return err
	}
	f := s.found.situation
	return s.withStore(ctx, func(ctx context.Context, store clusterid.Store) error {
		id, err := s.identify(ctx, store, keys)
		if err != nil {
			return err
		}
		if err := store.Save(ctx, f.Stored, id); err != nil {
			return err
		}
		if f.File == nil || f.File.ID != id.ID {
			s.logger.Info("the server belongs to a cluster", "cluster", id.ID, "datastore", f.Datastore, "new", s.found.start == clusterid.First)
		}
		return clusterid.Write(s.cfg.DataDir, clusterid.File{Identity: id, Datastore: f.Datastore})
	})
}

func (s *Server) identify(ctx context.Context, store clusterid.Store, keys clusterid.Keys) (clusterid.Identity, error) {
	f := s.found.situation
	if f.Stored != nil {
		return clusterid.Check(f.Dir, *f.Stored, string(s.cfg.Profile), keys, s.cfg.AcceptKeys)
	}
	if s.found.start == clusterid.Unmarked {
		fits, err := store.Fits(ctx, s.creds.authority.CertificatePEM())
		if err == nil {
			err = clusterid.CheckUnmarked(f, fits)
		}
		if err != nil {
			return clusterid.Identity{}, err
		}
	}
	if f.File != nil && !f.NewCluster { // an older copy of the same datastore, without an identity
		return clusterid.Check(f.Dir, f.File.Identity, string(s.cfg.Profile), keys, s.cfg.AcceptKeys)
	}
	return clusterid.Identity{ID: string(uuid.NewUUID()), Profile: string(s.cfg.Profile), Authority: keys.Authority, Keys: keys.Files}, nil
}

// withStore calls use with a client of the datastore, and closes the client afterward.
func (s *Server) withStore(ctx context.Context, use func(context.Context, clusterid.Store) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errors.New("the datastore did not answer in time"))
	defer cancel()
	var client *clientv3.Client
	client, err := s.store.Endpoint().Client(zap.NewNop())
	if err != nil {
		return err
	}
	defer client.Close()
	err = use(ctx, clusterid.Store{Client: client})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w (%s): %w", context.Cause(ctx), s.cfg.datastore().Describe(), err)
	}
	return err
}

// fingerprints returns the fingerprints of the keys on which objects and clients of the cluster
// depend.
func (c *credentials) fingerprints() (clusterid.Keys, error) {
	keys := clusterid.Keys{Authority: clusterid.Fingerprint(c.authority.CertificatePEM()), Files: map[string][]string{}}
	for _, name := range []string{serviceAccountKeyFile, encryptionFile} {
		all, err := c.fingerprintsOf(name)
		if err != nil {
			return keys, err
		}
		keys.Files[name] = all
	}
	return keys, nil
}

// fingerprintsOf returns the fingerprints of the keys in one of the files.
func (c *credentials) fingerprintsOf(name string) (all []string, err error) {
	if name == encryptionFile {
		secrets, err := encryptionKeys(c.path(name))
		for _, secret := range secrets {
			all = append(all, clusterid.Fingerprint([]byte(secret)))
		}
		return all, err
	}
	public, err := keyutil.PublicKeysFromFile(c.path(name))
	if err != nil {
		return nil, unreadable(c.path(name), "it is not a PEM key, and the tokens of all service accounts are signed with it", err)
	}
	for _, key := range public {
		der, err := x509.MarshalPKIXPublicKey(key)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", c.path(name), err)
		}
		all = append(all, clusterid.Fingerprint(der))
	}
	return all, nil
}

// unreadable returns the error for a damaged key file.
func unreadable(path, what string, cause error) error {
	err := fmt.Errorf("%w: %s is damaged: %s. Restore the file from a backup of the data directory. To create a new one instead, move the file away and start the server once with %s",
		clusterid.ErrKeys, path, what, clusterid.FlagAcceptKeys)
	return errors.Join(err, cause)
}

// encryptionKeys returns the secrets of all providers in an encryption configuration.
func encryptionKeys(path string) ([]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading the encryption keys of Secrets: %w", err)
	}
	var config apiserverv1.EncryptionConfiguration
	if err := yaml.Unmarshal(data, &config); err != nil {
		return nil, unreadable(path, "it is not an EncryptionConfiguration (the cause is not shown, because it may contain a key), and without it no stored Secret can be read", nil)
	}
	var secrets []string
	for _, resource := range config.Resources {
		for _, provider := range resource.Providers {
			var keys []apiserverv1.Key
			switch {
			case provider.Secretbox != nil:
				keys = provider.Secretbox.Keys
			case provider.AESGCM != nil:
				keys = provider.AESGCM.Keys
			case provider.AESCBC != nil:
				keys = provider.AESCBC.Keys
			}
			for _, key := range keys {
				secrets = append(secrets, key.Secret)
			}
		}
	}
	return secrets, nil
}

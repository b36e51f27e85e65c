package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"rik.dev/rik/internal/apiserver/clusterid"
	"rik.dev/rik/internal/apiserver/datastore"
	"rik.dev/rik/internal/apiserver/recovery"
	"rik.dev/rik/internal/backup"
	"rik.dev/rik/internal/version"
)

// Backup writes a backup of the cluster. It reads the datastore at one revision, while the server
// serves.
func (s *Server) Backup(ctx context.Context, to backup.Recipients, w io.Writer) (*backup.Manifest, error) {
	return s.backup(ctx, func(h backup.Header) (*backup.Writer, error) { return backup.NewWriter(w, to, h) })
}

func (s *Server) backup(ctx context.Context, open func(backup.Header) (*backup.Writer, error)) (*backup.Manifest, error) {
	id, err := clusterid.Read(s.cfg.DataDir)
	if err != nil {
		return nil, err
	}
	if id == nil {
		return nil, errors.New("the data directory has no identity of a cluster")
	}
	client, err := s.store.Endpoint().Client(zap.NewNop())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return recovery.Create(ctx, recovery.Source{Client: client, Dir: s.cfg.DataDir, Header: backup.Header{
		Version: version.Version, Cluster: id.ID, Profile: string(s.cfg.Profile), Datastore: s.cfg.datastore().Kind(),
	}}, open)
}

// backupRoute streams a backup to an administrator. A backup contains the keys of the certificate
// authority and of Secrets, so no RBAC rule gives access to it: only the group system:masters has it.
func (s *Server) backupRoute() Route {
	return Route{Path: backup.Path, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := request.UserFrom(r.Context())
		if !ok || !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
			http.Error(w, "only the group "+user.SystemPrivilegedGroup+" may create a backup, because it contains all keys of the cluster", http.StatusForbidden)
			return
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "use POST", http.StatusMethodNotAllowed)
			return
		}
		begun := false
		m, err := s.backup(r.Context(), func(h backup.Header) (*backup.Writer, error) {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.WriteHeader(http.StatusOK)
			begun = true
			return backup.NewWriter(w, backup.Recipients{Unencrypted: true}, h)
		})
		switch {
		case err != nil && !begun:
			s.logger.Error("creating a backup failed", "user", who.GetName(), "err", err)
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case err != nil:
			s.logger.Error("creating a backup failed", "user", who.GetName(), "err", err)
			panic(http.ErrAbortHandler) // the client must not take what it has for a whole backup
		default:
			s.logger.Info("a backup was created", "user", who.GetName(), "backup", m.ID, "revision", m.Revision, "objects", m.Objects)
		}
	})}
}

// RestoreBackup restores a backup into the data directory and the datastore of a server that does
// not run. Both must be empty. from is the place of the backup, for messages.
func RestoreBackup(ctx context.Context, cfg Config, from string, open recovery.Opener, keys backup.Identities) (m *backup.Manifest, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	unlock, err := lockDataDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return recovery.Restore(ctx, recovery.Target{
		Dir: cfg.DataDir, Datastore: cfg.datastore(), Profile: string(cfg.Profile), From: from, Logger: cfg.Logger,
	}, open, keys)
}

// VerifyBackup restores a backup into a scratch directory, which must be empty, and compares every
// object. It also checks that the keys in the backup are those of the cluster.
func VerifyBackup(ctx context.Context, cfg Config, open recovery.Opener, keys backup.Identities) (*backup.Manifest, error) {
	m, err := RestoreBackup(ctx, cfg, "to verify", open, keys)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	creds, err := openCredentials(cfg, false)
	if err != nil {
		return nil, fmt.Errorf("the backup has no usable keys: %w", err)
	}
	have, err := creds.fingerprints()
	if err != nil {
		return nil, fmt.Errorf("the backup has no usable keys: %w", err)
	}
	id, err := storedIdentity(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := clusterid.Check(cfg.DataDir, id, string(cfg.Profile), have, false); err != nil {
		return nil, fmt.Errorf("the keys in the backup are not those of its objects: %w", err)
	}
	return m, nil
}

// storedIdentity returns the identity in the datastore of a server that does not run.
func storedIdentity(ctx context.Context, cfg Config) (id clusterid.Identity, err error) {
	store, err := datastore.Open(ctx, cfg.datastore())
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	client, err := store.Endpoint().Client(zap.NewNop())
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	found, err := clusterid.Store{Client: client}.Load(ctx)
	if err != nil {
		return id, err
	}
	if found == nil {
		return id, errors.New("the objects in the backup have no identity of a cluster")
	}
	return *found, nil
}

// refuseUnfinished refuses a datastore that contains a part of a backup.
func (s *Server) refuseUnfinished(ctx context.Context) error {
	return s.withStore(ctx, func(ctx context.Context, store clusterid.Store) error {
		return recovery.Marked(ctx, store.Client, s.cfg.datastore().Describe())
	})
}

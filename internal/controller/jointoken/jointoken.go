// Package jointoken manages the tokens with which machines join the cluster.
//
// A token is a Secret in the system namespace that holds the hash of the token's secret part,
// and never that part itself. A person who can read the datastore therefore cannot join.
//
// Reads: secrets of type rik.dev/join-token. Writes: the same.
package jointoken

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"rik.dev/rik/internal/pause"
	"rik.dev/rik/internal/rpc/jointoken"
)

const (
	// Namespace is the namespace of the Secrets.
	Namespace = "rik-system"
	// SecretType distinguishes them from other Secrets.
	SecretType corev1.SecretType = "rik.dev/join-token"

	namePrefix     = "join-token-"
	keyHash        = "secret-sha256"
	keyCreated     = "created"
	keyExpires     = "expires"
	keyDescription = "description"
	keyRole        = "role" // RoleNode if it is missing
	keyUses        = "uses"
	keyLastUsed    = "last-used"
	secretBytes    = 32
	idBytes        = 5
)

// maxAhead is how much later than now the creation time of a token may be, because the clocks
// of several servers differ. A token that is further ahead was created while a server's clock
// was wrong. Its expiry time is then meaningless, and the token is treated as expired.
// Otherwise it could be used for its lifetime plus the time by which the clock was ahead.
const maxAhead = 5 * time.Minute

// endInterval is the interval at which Run searches for such tokens.
const endInterval = 10 * time.Minute

// ErrRefused is returned for every token that cannot be used to join: unknown, expired, revoked
// or wrong. Only the server's log contains the exact reason.
var ErrRefused = errors.New("the join token is not valid")

// Authority is the authority whose certificate's hash is part of a token.
type Authority interface {
	// Hash is "sha256:" and the hash in hexadecimal.
	Hash() string
}

// Tokens creates, verifies and revokes tokens.
type Tokens struct {
	client client.Client
	caHash string
	now    func() time.Time

	using sync.Mutex // serializes the counting of uses

	reading singleflight.Group
	known   atomic.Pointer[known]
}

// known is a recent copy of the token hashes, by the Secret's name.
type known struct {
	at     time.Time
	hashes map[string][]byte
}

// knownFor is how long known may be used.
const knownFor = time.Second

// New creates Tokens and makes no request. The client must be able to read and write Secrets in
// Namespace. It should not read from a cache, so that a revoked token stops working at once.
func New(c client.Client, authority Authority, now func() time.Time) *Tokens {
	return &Tokens{client: c, caHash: strings.TrimPrefix(authority.Hash(), "sha256:"), now: now}
}

// Options configures a new token.
type Options struct {
	// Life is the lifetime of the token. Zero means forever.
	Life time.Duration
	// Description is for people, such as the recipient of the token.
	Description string
	// Role is what a machine may become. Empty means a node.
	Role jointoken.Role
}

// Create creates a token. The text of the token can be read only from its result.
func (t *Tokens) Create(ctx context.Context, options Options) (jointoken.Token, error) {
	if options.Life < 0 {
		return jointoken.Token{}, fmt.Errorf("the lifetime of a token must not be negative, got %v", options.Life)
	}
	token := jointoken.Token{CAHash: t.caHash, ID: randomID(), Secret: randomSecret()}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: namePrefix + token.ID},
		Type:       SecretType,
		Data:       map[string][]byte{keyHash: []byte(hash(token.Secret)), keyDescription: []byte(options.Description)},
	}
	if options.Role != "" && options.Role != jointoken.RoleNode {
		secret.Data[keyRole] = []byte(options.Role)
	}
	if options.Life > 0 {
		now := t.now().UTC()
		secret.Data[keyCreated] = []byte(now.Format(time.RFC3339))
		secret.Data[keyExpires] = []byte(now.Add(options.Life).Format(time.RFC3339))
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := t.client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return jointoken.Token{}, fmt.Errorf("creating namespace %s: %w", Namespace, err)
	}
	if err := t.client.Create(ctx, secret); err != nil {
		return jointoken.Token{}, fmt.Errorf("storing the join token: %w", err)
	}
	return token, nil
}

// Verify returns nil for a token with which a node may join now. It returns ErrRefused (wrapped with the
// reason, for the log) for one that may not. It returns another error if the check failed.
func (t *Tokens) Verify(ctx context.Context, text string) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_, err = t.stored(ctx, token, jointoken.RoleNode)
	return err
}

// Plausible reports whether a token may be valid, from data that is at most one second old. It
// reads the datastore at most once a second, however often it is called. Verify makes the final
// decision.
func (t *Tokens) Plausible(ctx context.Context, text string) bool {
	token, err := jointoken.Parse(text)
	if err != nil {
		return false
	}
	now := t.known.Load()
	if now == nil || t.now().Sub(now.at) >= knownFor {
		// The cancellation of one of several callers must not cancel the read for the others.
		read, err, _ := t.reading.Do("", func() (any, error) { return t.readKnown(context.WithoutCancel(ctx)) })
		if err != nil {
			return true // Verify reports the error
		}
		now, _ = read.(*known)
	}
	stored, found := now.hashes[namePrefix+token.ID]
	return found && subtle.ConstantTimeCompare(stored, []byte(hash(token.Secret))) == 1
}

func (t *Tokens) readKnown(ctx context.Context) (*known, error) {
	fresh := &known{at: t.now(), hashes: map[string][]byte{}}
	var list corev1.SecretList
	if err := t.client.List(ctx, &list, client.InNamespace(Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Type == SecretType {
			fresh.hashes[s.Name] = s.Data[keyHash]
		}
	}
	t.known.Store(fresh)
	return fresh, nil
}

// stored returns the Secret of a token, if the token may be used now for the role.
func (t *Tokens) stored(ctx context.Context, token jointoken.Token, role jointoken.Role) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := t.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: namePrefix + token.ID}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: token %s does not exist", ErrRefused, token.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("reading join token %s: %w", token.ID, err)
	}
	if err := t.end(ctx, secret); err != nil {
		return nil, err
	}
	if err := check(secret, token, t.now()); err != nil {
		return nil, err
	}
	if has := roleOf(secret); has != role {
		return nil, fmt.Errorf("%w: token %s is for a %s, and not for a %s", ErrRefused, token.ID, has, role)
	}
	return secret, nil
}

func roleOf(s *corev1.Secret) jointoken.Role {
	return cmp.Or(jointoken.Role(s.Data[keyRole]), jointoken.RoleNode)
}

// end ends a token that was created later than now, durably. The token must not become valid
// when that time comes.
func (t *Tokens) end(ctx context.Context, stored *corev1.Secret) error {
	now := t.now()
	if stored.Type != SecretType || !ahead(stored, now) {
		return nil
	}
	stored.Data[keyExpires] = []byte(now.UTC().Format(time.RFC3339))
	stored.Data[keyCreated] = stored.Data[keyExpires]
	err := t.client.Update(ctx, stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("expiring join token %s, which was created while a server's clock was ahead: %w", idOf(stored), err)
	}
	return nil
}

// ahead reports whether a token with an expiry time was created later than now.
func ahead(stored *corev1.Secret, now time.Time) bool {
	if len(stored.Data[keyExpires]) == 0 {
		return false
	}
	made, err := time.Parse(time.RFC3339, string(stored.Data[keyCreated]))
	if err != nil {
		made = stored.CreationTimestamp.Time // created by an earlier version
	}
	return made.After(now.Add(maxAhead))
}

// Run ends tokens that were created while a server's clock was ahead, until ctx ends.
func (t *Tokens) Run(ctx context.Context, log *slog.Logger) error {
	for {
		if err := t.endAll(ctx, log); err != nil && ctx.Err() == nil {
			log.Warn("checking the join tokens failed", "err", err)
		}
		if !pause.For(ctx, endInterval) {
			return nil
		}
	}
}

func (t *Tokens) endAll(ctx context.Context, log *slog.Logger) error {
	var list corev1.SecretList
	if err := t.client.List(ctx, &list, client.InNamespace(Namespace)); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		s := &list.Items[i]
		if s.Type != SecretType || !ahead(s, t.now()) {
			continue
		}
		log.Warn("expired a join token whose creation time is later than this machine's clock; create another", "token", idOf(s), "created", s.CreationTimestamp.UTC())
		errs = append(errs, t.end(ctx, s))
	}
	return errors.Join(errs...)
}

func idOf(s *corev1.Secret) string { return strings.TrimPrefix(s.Name, namePrefix) }

// check decides whether a stored token may be used.
func check(stored *corev1.Secret, token jointoken.Token, now time.Time) error {
	if stored.Type != SecretType {
		return fmt.Errorf("%w: secret %s is not a join token", ErrRefused, stored.Name)
	}
	if subtle.ConstantTimeCompare(stored.Data[keyHash], []byte(hash(token.Secret))) != 1 {
		return fmt.Errorf("%w: wrong secret for token %s", ErrRefused, token.ID)
	}
	expires, err := expiry(stored)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if !expires.IsZero() && !now.Before(expires) {
		return fmt.Errorf("%w: token %s expired at %s", ErrRefused, token.ID, expires.Format(time.RFC3339))
	}
	return nil
}

// Use verifies a token like Verify, and counts the use durably. Call it right before a
// certificate is issued. A token that was just revoked is refused.
func (t *Tokens) Use(ctx context.Context, text string) error {
	return t.use(ctx, text, jointoken.RoleNode)
}

// UseServer is Use for a server, before it gets the keys of the cluster. It refuses tokens of nodes.
func (t *Tokens) UseServer(ctx context.Context, text string) error {
	return t.use(ctx, text, jointoken.RoleServer)
}

func (t *Tokens) use(ctx context.Context, text string, role jointoken.Role) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	// A whole cluster may join with one token at once.
	t.using.Lock()
	defer t.using.Unlock()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		stored, err := t.stored(ctx, token, role)
		if err != nil {
			return err
		}
		uses, _ := strconv.ParseInt(string(stored.Data[keyUses]), 10, 64) // none, or malformed
		stored.Data[keyUses] = strconv.AppendInt(nil, uses+1, 10)
		stored.Data[keyLastUsed] = []byte(t.now().UTC().Format(time.RFC3339))
		return t.client.Update(ctx, stored)
	})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%w: token %s was revoked", ErrRefused, token.ID)
	}
	if err != nil && !errors.Is(err, ErrRefused) {
		return fmt.Errorf("counting the use of join token %s: %w", token.ID, err)
	}
	return err
}

// List returns all tokens, the oldest first.
func (t *Tokens) List(ctx context.Context) ([]jointoken.Info, error) {
	var list corev1.SecretList
	if err := t.client.List(ctx, &list, client.InNamespace(Namespace)); err != nil {
		return nil, fmt.Errorf("listing join tokens: %w", err)
	}
	infos := []jointoken.Info{}
	for i := range list.Items {
		if list.Items[i].Type == SecretType {
			info := infoOf(&list.Items[i])
			if ahead(&list.Items[i], t.now()) {
				now := t.now().UTC()
				info.Expires = &now
			}
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b jointoken.Info) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
	})
	return infos, nil
}

// infoOf reads a stored token. A token with a malformed time cannot be used to join. It is
// still listed, so that it can be deleted.
func infoOf(s *corev1.Secret) jointoken.Info {
	info := jointoken.Info{
		ID:          idOf(s),
		Role:        roleOf(s),
		Description: string(s.Data[keyDescription]),
		Created:     s.CreationTimestamp.UTC(),
	}
	info.Uses, _ = strconv.ParseInt(string(s.Data[keyUses]), 10, 64)
	if expires, err := expiry(s); err != nil {
		info.Expires = &info.Created
	} else if !expires.IsZero() {
		info.Expires = &expires
	}
	if used, err := time.Parse(time.RFC3339, string(s.Data[keyLastUsed])); err == nil {
		info.LastUsed = &used
	}
	return info
}

// Delete revokes a token at once. Certificates that were issued for it stay valid. Deleting
// their Nodes revokes them.
func (t *Tokens) Delete(ctx context.Context, id string) error {
	if problem := (jointoken.Token{CAHash: t.caHash, ID: id, Secret: strings.Repeat("x", secretBytes)}).Validate(); problem != nil {
		return apierrors.NewBadRequest(problem.Error())
	}
	name := client.ObjectKey{Namespace: Namespace, Name: namePrefix + id}
	var secret corev1.Secret
	err := t.client.Get(ctx, name, &secret)
	if err == nil && secret.Type != SecretType {
		err = apierrors.NewNotFound(resource, id)
	}
	if err == nil {
		err = t.client.Delete(ctx, &secret)
	}
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(resource, id)
	}
	if err != nil {
		return fmt.Errorf("revoking join token %s: %w", id, err)
	}
	return nil
}

func expiry(s *corev1.Secret) (time.Time, error) {
	raw := string(s.Data[keyExpires])
	if raw == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339, raw)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the expiry of secret %s: %w", s.Name, err)
	}
	return at, nil
}

// hash uses no salt, because the secret has 256 random bits.
func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func randomID() string { return hex.EncodeToString(random(idBytes)) }

func randomSecret() string { return base64.RawURLEncoding.EncodeToString(random(secretBytes)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand crashes the program instead
	return b
}

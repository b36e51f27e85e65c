// Package jointoken keeps the tokens with which machines join the cluster.
//
// A token is a Secret in the system namespace that holds the hash of the
// token's secret part, never that part itself: who reads the datastore cannot
// join. Reads: secrets of type rik.dev/join-token. Writes: the same.
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

	"rik.dev/rik/internal/rpc/jointoken"
)

const (
	// Namespace holds the Secrets.
	Namespace = "rik-system"
	// SecretType tells them from others.
	SecretType corev1.SecretType = "rik.dev/join-token"

	namePrefix     = "join-token-"
	keyHash        = "secret-sha256"
	keyCreated     = "created"
	keyExpires     = "expires"
	keyDescription = "description"
	keyUses        = "uses"
	keyLastUsed    = "last-used"
	secretBytes    = 32
	idBytes        = 5
)

// maxAhead is how much later than now a token may have been made: clocks of several servers differ.
// One that is further ahead was made while a server's clock was wrong. Its end says nothing, so
// that it has ended: it could otherwise be used for as long as the clock was ahead, and its life.
const maxAhead = 5 * time.Minute

// endInterval is how often tokens are looked through for such ones.
const endInterval = 10 * time.Minute

// ErrRefused is returned for every token that lets nobody join: unknown,
// expired, revoked or wrong. The message says which only to the server's log.
var ErrRefused = errors.New("the join token is not valid")

// Authority is whose certificate's hash goes into a token.
type Authority interface {
	// Hash is "sha256:" and the hash in hexadecimal.
	Hash() string
}

// Tokens makes, checks and revokes tokens.
type Tokens struct {
	client client.Client
	caHash string
	now    func() time.Time

	using sync.Mutex // uses are counted one after the other

	reading singleflight.Group
	known   atomic.Pointer[known]
}

// known is what there was of tokens a moment ago: their hashes by the Secret's name.
type known struct {
	at     time.Time
	hashes map[string][]byte
}

// knownFor is how long that is good enough to look at.
const knownFor = time.Second

// New needs a client that may read and write Secrets in Namespace, and makes no
// request. The client should not read from a cache: a revoked token must not
// work a moment longer.
func New(c client.Client, authority Authority, now func() time.Time) *Tokens {
	return &Tokens{client: c, caHash: strings.TrimPrefix(authority.Hash(), "sha256:"), now: now}
}

// Options of a new token.
type Options struct {
	// Life of the token; for ever when 0.
	Life time.Duration
	// Description for people, such as whom it was given to.
	Description string
}

// Create makes a token. It is the only moment at which its text can be had.
func (t *Tokens) Create(ctx context.Context, options Options) (jointoken.Token, error) {
	if options.Life < 0 {
		return jointoken.Token{}, fmt.Errorf("a token's life of %v has ended before it began", options.Life)
	}
	token := jointoken.Token{CAHash: t.caHash, ID: randomID(), Secret: randomSecret()}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: namePrefix + token.ID},
		Type:       SecretType,
		Data:       map[string][]byte{keyHash: []byte(hash(token.Secret)), keyDescription: []byte(options.Description)},
	}
	if options.Life > 0 {
		now := t.now().UTC()
		secret.Data[keyCreated] = []byte(now.Format(time.RFC3339))
		secret.Data[keyExpires] = []byte(now.Add(options.Life).Format(time.RFC3339))
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := t.client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return jointoken.Token{}, fmt.Errorf("making namespace %s: %w", Namespace, err)
	}
	if err := t.client.Create(ctx, secret); err != nil {
		return jointoken.Token{}, fmt.Errorf("storing the join token: %w", err)
	}
	return token, nil
}

// Verify returns nil for a token that may be used now, ErrRefused (wrapped with
// the reason, for the log) for one that may not, and another error when that
// could not be found out.
func (t *Tokens) Verify(ctx context.Context, text string) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_, err = t.stored(ctx, token)
	return err
}

// Plausible says whether a token may be valid, by what was known of tokens within the last
// second: it reads the datastore once a second at most, however often it is called. Verify
// decides.
func (t *Tokens) Plausible(ctx context.Context, text string) bool {
	token, err := jointoken.Parse(text)
	if err != nil {
		return false
	}
	now := t.known.Load()
	if now == nil || t.now().Sub(now.at) >= knownFor {
		// The first of several callers must not end it for the others.
		read, err, _ := t.reading.Do("", func() (any, error) { return t.readKnown(context.WithoutCancel(ctx)) })
		if err != nil {
			return true // Verify reports it
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

// stored reads what there is of a token, if it may be used now.
func (t *Tokens) stored(ctx context.Context, token jointoken.Token) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	err := t.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: namePrefix + token.ID}, secret)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: there is no token %s", ErrRefused, token.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("reading join token %s: %w", token.ID, err)
	}
	if err := t.end(ctx, secret); err != nil {
		return nil, err
	}
	return secret, check(secret, token, t.now())
}

// end ends a token that was made later than now, durably: it must not come to life again when
// that time comes.
func (t *Tokens) end(ctx context.Context, stored *corev1.Secret) error {
	now := t.now()
	if stored.Type != SecretType || !ahead(stored, now) {
		return nil
	}
	stored.Data[keyExpires] = []byte(now.UTC().Format(time.RFC3339))
	stored.Data[keyCreated] = stored.Data[keyExpires]
	err := t.client.Update(ctx, stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ending join token %s, which was made while a server's clock was ahead: %w", idOf(stored), err)
	}
	return nil
}

// ahead tells whether a token with an end was made later than now.
func ahead(stored *corev1.Secret, now time.Time) bool {
	if len(stored.Data[keyExpires]) == 0 {
		return false
	}
	made, err := time.Parse(time.RFC3339, string(stored.Data[keyCreated]))
	if err != nil {
		made = stored.CreationTimestamp.Time // it is of an earlier version
	}
	return made.After(now.Add(maxAhead))
}

// Run ends tokens that were made while a server's clock was ahead, until ctx ends.
func (t *Tokens) Run(ctx context.Context, log *slog.Logger) error {
	for {
		if err := t.endAll(ctx, log); err != nil && ctx.Err() == nil {
			log.Warn("join tokens were not looked through", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(endInterval):
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
		log.Warn("a join token was made later than this machine's clock says now; it has ended: make another", "token", idOf(s), "created", s.CreationTimestamp.UTC())
		errs = append(errs, t.end(ctx, s))
	}
	return errors.Join(errs...)
}

func idOf(s *corev1.Secret) string { return strings.TrimPrefix(s.Name, namePrefix) }

// check decides on a stored token.
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

// Use is Verify, and counts the use, durably: it is to be called right before a
// certificate is given. A token that is revoked at that moment is refused.
func (t *Tokens) Use(ctx context.Context, text string) error {
	token, err := jointoken.Parse(text)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	// A whole cluster may join with one token at once.
	t.using.Lock()
	defer t.using.Unlock()
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		stored, err := t.stored(ctx, token)
		if err != nil {
			return err
		}
		uses, _ := strconv.ParseInt(string(stored.Data[keyUses]), 10, 64) // none yet, or nonsense
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

// List gives all tokens, the oldest first.
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

// infoOf reads a stored token. One with a time that cannot be read lets nobody
// join, and is still listed: it is to be deleted.
func infoOf(s *corev1.Secret) jointoken.Info {
	info := jointoken.Info{
		ID:          idOf(s),
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

// Delete revokes a token, at once. Certificates that were given for it stay
// valid: deleting their Nodes revokes those.
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

// hash needs no salt: what it hides is 256 random bits.
func hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func randomID() string { return hex.EncodeToString(random(idBytes)) }

func randomSecret() string { return base64.RawURLEncoding.EncodeToString(random(secretBytes)) }

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: crypto/rand ends the program instead
	return b
}

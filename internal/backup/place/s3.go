package place

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"rik.dev/rik/internal/backup"
)

// partBytes is the size of the parts of an upload. One part is in memory. A store accepts 10,000
// parts, so a backup may have 160 GiB.
const partBytes = 16 << 20

// bucket is a Place in an S3-compatible store.
type bucket struct {
	client       *minio.Client
	name, prefix string
}

// parseBucket reads bucket/prefix, and the settings of the store in the environment: the variables
// of the AWS command line.
func parseBucket(address string) (Place, string, error) {
	name, key, _ := strings.Cut(address, "/")
	if name == "" {
		return nil, "", errors.New("the address of the backup has no bucket: use s3://bucket/prefix")
	}
	client, err := newClient()
	if err != nil {
		return nil, "", err
	}
	prefix, file := key, ""
	if strings.HasSuffix(key, backup.Extension) {
		prefix, file = path.Split(key)
	}
	prefix = strings.Trim(prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &bucket{client: client, name: name, prefix: prefix}, file, nil
}

func newClient() (*minio.Client, error) {
	endpoint := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com")
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return nil, errors.New("AWS_ENDPOINT_URL_S3 is not a URL such as https://s3.example (it is not shown, because it may contain a password)")
	}
	if u.Scheme == "http" && u.Hostname() != "localhost" && u.Hostname() != "::1" && !strings.HasPrefix(u.Hostname(), "127.") {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL_S3 is plain http to another machine (%s): use https", u.Host)
	}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" || os.Getenv("AWS_SECRET_ACCESS_KEY") == "" {
		return nil, errors.New("the store of the backup needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and AWS_ENDPOINT_URL_S3 for another store than that of AWS")
	}
	transport, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, fmt.Errorf("connecting to the store of the backup: %w", err)
	}
	if err := trust(transport, os.Getenv("AWS_CA_BUNDLE")); err != nil {
		return nil, err
	}
	client, err := minio.New(u.Host, &minio.Options{
		Creds:  credentials.NewStaticV4(os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN")),
		Secure: u.Scheme == "https", Region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")), Transport: transport,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the store of the backup: %w", err)
	}
	return client, nil
}

// trust adds the certificate authorities in a file.
func trust(transport *http.Transport, file string) error {
	if file == "" {
		return nil
	}
	pem, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading AWS_CA_BUNDLE: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("AWS_CA_BUNDLE: %s contains no certificate", file)
	}
	if transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	transport.TLSClientConfig.RootCAs = pool
	return nil
}

func (b *bucket) Path(name string) string { return s3Scheme + b.name + "/" + b.prefix + name }

func (b *bucket) Put(ctx context.Context, name string, content io.Reader) error {
	_, err := b.client.PutObject(ctx, b.name, b.prefix+name, content, -1, minio.PutObjectOptions{PartSize: partBytes, ContentType: "application/octet-stream"})
	if err != nil {
		return fmt.Errorf("storing %s: %w", b.Path(name), err)
	}
	return nil
}

func (b *bucket) Open(ctx context.Context, name string) (io.ReadCloser, error) {
	object, err := b.client.GetObject(ctx, b.name, b.prefix+name, minio.GetObjectOptions{})
	if err == nil {
		_, err = object.Stat()
		if err != nil {
			err = errors.Join(err, object.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", b.Path(name), err)
	}
	return object, nil
}

func (b *bucket) List(ctx context.Context) ([]Item, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var items []Item
	for object := range b.client.ListObjects(ctx, b.name, minio.ListObjectsOptions{Prefix: b.prefix}) {
		if object.Err != nil {
			return nil, fmt.Errorf("listing %s: %w", b.Path(""), object.Err)
		}
		if name := strings.TrimPrefix(object.Key, b.prefix); strings.HasSuffix(name, backup.Extension) {
			items = append(items, Item{Name: name, Bytes: object.Size, Modified: object.LastModified})
		}
	}
	sortItems(items)
	return items, nil
}

func (b *bucket) Remove(ctx context.Context, name string) error {
	if err := b.client.RemoveObject(ctx, b.name, b.prefix+name, minio.RemoveObjectOptions{}); err != nil {
		return fmt.Errorf("removing %s: %w", b.Path(name), err)
	}
	return nil
}

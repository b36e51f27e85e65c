// Command stream sends requests to the copies of an application at a steady rate, and counts the
// answers. It has several addresses, like a load balancer, and uses them in turn. If an address
// does not answer, the request goes to the next one. For a while, other addresses are then
// preferred.
//
//	stream -to http://10.97.0.11:30080,http://10.97.0.12:30080
//
// It stops on SIGINT and SIGTERM, or after -for. At the end it prints how many requests failed, and
// the longest time without an answer. On SIGUSR1 it prints the results so far.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	to := flag.String("to", "", "URLs to request, separated by commas")
	interval := flag.Duration("every", 20*time.Millisecond, "interval of requests")
	timeout := flag.Duration("patience", 500*time.Millisecond, "timeout of a request")
	avoid := flag.Duration("avoid", 2*time.Second, "time for which an address that did not answer is used last")
	length := flag.Duration("for", 0, "stop after this time; 0: run until a signal")
	flag.Parse()
	if *to == "" || *interval <= 0 || *timeout <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if *length > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *length)
		defer cancel()
	}
	s := newStream(strings.Split(*to, ","), asker(*timeout), *avoid)
	report := make(chan os.Signal, 1)
	signal.Notify(report, syscall.SIGUSR1)
	s.run(ctx, *interval, report)
	s.report(os.Stdout)
}

// stream is a sequence of requests. Each is sent at its time, even if earlier ones have no answer
// yet. So a request that hangs does not hide later failures.
type stream struct {
	addresses []string
	ask       func(ctx context.Context, url string) error
	avoid     time.Duration

	mu sync.Mutex
	// bad has the time until which an address is used last.
	bad   map[string]time.Time
	count count
}

func newStream(addresses []string, ask func(context.Context, string) error, avoid time.Duration) *stream {
	return &stream{
		addresses: addresses, ask: ask, avoid: avoid,
		bad: map[string]time.Time{}, count: count{by: map[string]int{}},
	}
}

func (s *stream) run(ctx context.Context, interval time.Duration, report <-chan os.Signal) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var asked sync.WaitGroup
	defer asked.Wait()
	for turn := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-report:
			s.report(os.Stdout)
		case <-ticker.C:
			n := turn
			turn++
			// Open requests at the end count too, so run waits for them.
			asked.Go(func() { s.request(context.WithoutCancel(ctx), n) })
		}
	}
}

// request sends a request to the addresses in their order until one answers.
func (s *stream) request(ctx context.Context, turn int) {
	var last error
	for i, address := range s.order(turn, time.Now()) {
		err := s.ask(ctx, address)
		now := time.Now()
		s.mu.Lock()
		if err == nil {
			delete(s.bad, address)
			s.count.answered(address, i > 0, now)
			s.mu.Unlock()
			return
		}
		s.bad[address] = now.Add(s.avoid)
		s.mu.Unlock()
		last = fmt.Errorf("%s: %w", address, err)
	}
	s.mu.Lock()
	s.count.failed(last, time.Now())
	s.mu.Unlock()
}

// order returns all addresses for one turn. Those that did not answer a moment ago are last.
func (s *stream) order(turn int, now time.Time) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var good, bad []string
	for i := range s.addresses {
		address := s.addresses[(turn+i)%len(s.addresses)]
		if s.bad[address].After(now) {
			bad = append(bad, address)
		} else {
			good = append(good, address)
		}
	}
	return append(good, bad...)
}

func (s *stream) report(out io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count.print(out, s.addresses, time.Now())
}

// asker returns a function that sends a request over a new connection, like a new client. An open
// connection would always lead to the same copy.
func asker(timeout time.Duration) func(context.Context, string) error {
	client := &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       (&net.Dialer{Timeout: timeout}).DialContext,
		},
	}
	return func(ctx context.Context, url string) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("it answers %s", response.Status)
		}
		return nil
	}
}

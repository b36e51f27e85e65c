// Command hello is the program of the demos. It prints a greeting with its host name every second.
// With flags it also answers requests over HTTP and UDP with the greeting, sends requests, or
// prints the version of its kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "", "address of the HTTP server; none by default")
	udp := flag.String("udp", "", "address of the UDP server; none by default")
	get := flag.String("get", "", "request this URL, print the answer, and exit")
	ask := flag.String("ask", "", "send a datagram to this address, print the answer, and exit")
	kernel := flag.Bool("kernel", false, "print the version of the kernel, and exit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if once := pick(*get, *ask, *kernel); once != nil {
		if err := once(ctx); err != nil {
			log.Fatal(err)
		}
		return
	}
	host, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	greeting := fmt.Sprintf("hello from %s", host)
	if *listen != "" {
		defer serve(ctx, *listen, greeting)()
	}
	if *udp != "" {
		if err := answer(ctx, *udp, greeting); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(greeting)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			fmt.Println("goodbye")
			return
		case now := <-tick.C:
			fmt.Println(greeting, "at", now.UTC().Format(time.TimeOnly))
		}
	}
}

// pick returns the single action that the flags request, or nil.
func pick(get, ask string, kernel bool) func(context.Context) error {
	switch {
	case get != "":
		return func(ctx context.Context) error { return show(ctx, get) }
	case ask != "":
		return func(ctx context.Context) error { return exchange(ctx, ask) }
	case kernel:
		return func(context.Context) error { return printFile("/proc/sys/kernel/osrelease") }
	default:
		return nil
	}
}

// serve answers HTTP until ctx ends. The returned function then waits for the open requests.
func serve(ctx context.Context, address, greeting string) (wait func()) {
	server := &http.Server{
		Addr:              address,
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, greeting)
		}),
	}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	return func() {
		timeout, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(timeout)
	}
}

// answer answers each datagram with the greeting.
func answer(ctx context.Context, address, greeting string) error {
	var listening net.ListenConfig
	socket, err := listening.ListenPacket(ctx, "udp", address)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = socket.Close() })
	go func() {
		question := make([]byte, 1500)
		for {
			_, from, err := socket.ReadFrom(question)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = socket.WriteTo([]byte(greeting+"\n"), from)
			}
		}
	}()
	return nil
}

// show prints the answer to a request for a URL.
func show(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

// exchange prints the answer of an address to a datagram. Datagrams can be lost, so it sends more
// than one.
func exchange(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	answer := make([]byte, 1500)
	for range 5 {
		if _, err = conn.Write([]byte("who?")); err != nil {
			continue
		}
		if err = conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		var n int
		if n, err = conn.Read(answer); err == nil {
			_, err = os.Stdout.Write(answer[:n])
			return err
		}
	}
	return err
}

func printFile(path string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(content)
	return err
}

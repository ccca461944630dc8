//go:build unix

package redistest

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Proxy passes TCP connections on to a server and makes trouble between the
// two. Its methods may be called from any goroutine.
type Proxy struct {
	tb     testing.TB
	addr   string
	target string
	wg     sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	closed   bool
	links    map[*link]struct{}
	delay    time.Duration
	drop     int
	accepted int
	dropped  int
}

// NewProxy starts a proxy on a free loopback port before target, a host:port.
// It ends in tb's Cleanup.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	l, err := listen()
	if err != nil {
		tb.Fatalf("redistest: proxy: %v", err)
	}
	p := &Proxy{tb: tb, addr: l.Addr().String(), target: target, links: map[*link]struct{}{}}
	p.serve(l)
	tb.Cleanup(p.close)
	return p
}

// Addr returns the host:port at which the proxy listens.
func (p *Proxy) Addr() string { return p.addr }

// Client returns a client that talks through the proxy, with go-redis's
// defaults changed by mutate; it is closed in tb's Cleanup.
func (p *Proxy) Client(tb testing.TB, mutate ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	return newClient(tb, &redis.Options{Addr: p.addr}, mutate)
}

// Delay holds back each reply by d from now on; 0 ends it. Requests reach the
// server at once, so what they ask for has been done long before the client
// hears of it. It delays without narrowing: replies that come together leave
// together.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Cut resets all connections. New ones are welcome.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// DropReplies loses the replies to the next n requests: each is passed on, the
// server does it and answers, and the connection is closed in place of the
// reply. 0 ends it.
//
// Requests are told apart by the replies between them, as a pooled client sends
// them; a pipeline counts as one. What a client sends of its own accord when it
// connects (HELLO, AUTH, SELECT, CLIENT, CLUSTER and the like) is not counted.
func (p *Proxy) DropReplies(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop = n
}

// Refuse closes the listener, so that dialling fails as if nothing ran there,
// or opens it again at the same address. Connections that exist stay, unless
// they are Cut.
func (p *Proxy) Refuse(refuse bool) {
	p.tb.Helper()
	p.mu.Lock()
	listener := p.listener
	if refuse {
		p.listener = nil
	}
	p.mu.Unlock()

	switch {
	case refuse && listener != nil:
		_ = listener.Close()
	case !refuse && listener == nil:
		var reopened net.Listener
		err := eventually(func() (bool, error) {
			var err error
			reopened, err = listenOn(p.addr)
			return err == nil, err
		})
		if err != nil {
			p.tb.Errorf("redistest: proxy: %v", err)
			return
		}
		p.serve(reopened)
	}
}

// Accepted returns how many connections the proxy has accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Dropped returns how many replies DropReplies has lost so far.
func (p *Proxy) Dropped() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// serve accepts from l until it is closed.
func (p *Proxy) serve(l net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.listener != nil { // too late, or two calls of Refuse(false)
		_ = l.Close()
		return
	}
	p.listener = l
	p.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.accepted++
			p.mu.Unlock()
			p.wg.Go(func() { p.relay(conn) })
		}
	})
}

// relay serves one connection until either side, or the test, ends it.
func (p *Proxy) relay(client net.Conn) {
	defer client.Close()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	server, err := dialer.DialContext(p.tb.Context(), "tcp", p.target)
	if err != nil {
		return // the client sees its connection closed
	}
	defer server.Close()

	l := &link{proxy: p, client: client, server: server, done: make(chan struct{})}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.links[l] = struct{}{}
	p.mu.Unlock()

	l.run()

	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	listener := p.listener
	p.listener = nil
	for l := range p.links {
		l.reset()
	}
	p.mu.Unlock()
	if listener != nil {
		_ = listener.Close()
	}
	p.wg.Wait()
}

//go:build unix

package redistest

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"time"
)

// link is one connection through a proxy.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	once sync.Once
	done chan struct{} // closed when either side is to go

	// Guarded by proxy.mu.
	owed    bool // a request went to the server since its last reply
	swallow bool // the next reply is lost and ends the link
}

// reply is what the server said in one piece and when the client may have it.
type reply struct {
	data []byte
	due  time.Time
}

// run moves bytes both ways until an end closes.
func (l *link) run() {
	replies := make(chan reply, 1024)
	var wg sync.WaitGroup
	wg.Go(l.requests)
	wg.Go(func() {
		defer close(replies) // what is on its way still arrives
		l.receive(replies)
	})
	wg.Go(func() { l.deliver(replies) })
	wg.Wait()
}

// end closes both sides, once.
func (l *link) end() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// reset ends the link with a reset instead of an orderly goodbye.
func (l *link) reset() {
	if tcp, ok := l.client.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	l.end()
}

// requests passes on what the client sends.
func (l *link) requests() {
	defer l.end()
	buf := make([]byte, 64<<10)
	for {
		n, err := l.client.Read(buf)
		if n > 0 {
			l.sent(buf[:n])
			if _, err := l.server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sent notes a piece of a request; its first one decides whether the reply will
// be lost. It comes before the piece is passed on, so the reply cannot overtake.
func (l *link) sent(piece []byte) {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	if l.owed {
		return
	}
	l.owed = true
	if l.proxy.drop > 0 && !greeting(piece) {
		l.proxy.drop--
		l.swallow = true
	}
}

// receive reads what the server says.
func (l *link) receive(replies chan<- reply) {
	for {
		buf := make([]byte, 64<<10)
		n, err := l.server.Read(buf)
		if n > 0 {
			delay, lost := l.answered()
			if lost {
				l.end()
				return
			}
			select {
			case replies <- reply{data: buf[:n], due: time.Now().Add(delay)}:
			case <-l.done:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// answered notes a piece of a reply.
func (l *link) answered() (delay time.Duration, lost bool) {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.owed = false
	if l.swallow {
		l.proxy.dropped++
	}
	return l.proxy.delay, l.swallow
}

// deliver hands replies to the client, each when it is due, and ends the link
// after the last one.
func (l *link) deliver(replies <-chan reply) {
	defer l.end()
	for r := range replies {
		if wait := time.Until(r.due); wait > 0 {
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-l.done:
				timer.Stop()
				return
			}
		}
		if _, err := l.client.Write(r.data); err != nil {
			return
		}
	}
}

// greeting says whether a request is one that clients send of their own accord
// on a new connection. A request is an array of bulk strings, the first of them
// the command: "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n".
func greeting(request []byte) bool {
	fields := bytes.SplitN(request, []byte("\r\n"), 4)
	if len(fields) < 4 || !bytes.HasPrefix(fields[0], []byte("*")) {
		return false
	}
	switch strings.ToUpper(string(fields[2])) {
	case "HELLO", "AUTH", "SELECT", "CLIENT", "READONLY", "CLUSTER", "COMMAND":
		return true
	default:
		return false
	}
}

package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// ServerConfig bounds what a connection may take. Zero values get the defaults that are named.
type ServerConfig struct {
	ReadHeaderTimeout time.Duration // default 5 s; a connection whose headers take longer is closed
	ReadTimeout       time.Duration // default 15 s; a body that takes longer, headers included, gets 408
	IdleTimeout       time.Duration // default 2 min between requests
	MaxHeaderBytes    int           // default 16 KiB, to which net/http adds 4 KiB; larger headers get 431
	// DrainDelay is how long asks are still served after /readyz began to fail: what load balancers need to notice.
	// Default 0.
	DrainDelay time.Duration
	// Logger gets what net/http complains about. nil: nobody does.
	Logger *slog.Logger
}

// Server serves a Handler on a listener.
type Server struct {
	http    *http.Server
	handler *Handler
	ln      net.Listener
	delay   time.Duration
}

// NewServer makes a server for the listener, which it closes in the end. There is no write timeout: answers are short,
// and streams end otherwise.
func NewServer(ln net.Listener, h *Handler, c ServerConfig) *Server {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{
		handler: h, ln: ln, delay: c.DrainDelay,
		http: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: orDefault(c.ReadHeaderTimeout, 5*time.Second),
			ReadTimeout:       orDefault(c.ReadTimeout, 15*time.Second),
			IdleTimeout:       orDefault(c.IdleTimeout, 2*time.Minute),
			MaxHeaderBytes:    orDefault(c.MaxHeaderBytes, 16<<10),
			ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelWarn),
		},
	}
}

// Serve accepts connections until Shutdown, and then returns nil at once: wait for Shutdown.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("httpapi: serve: %w", err)
	}
	return nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Shutdown makes readiness fail, serves asks for DrainDelay, refuses them from then on, and returns when all that is
// being served has been answered. When ctx ends first, connections are cut and its error is returned. Calling it again
// does no harm.
func (s *Server) Shutdown(ctx context.Context) error {
	s.handler.Drain()
	if s.delay > 0 && !s.handler.refusing.Load() {
		timer := time.NewTimer(s.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	s.handler.Refuse()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("httpapi: shutdown: %w", err)
	}
	return nil
}

// RequireLoopback refuses addresses that others than this machine can reach: without API keys nobody else may ask. The
// error says what to do.
func RequireLoopback(addr string) error {
	const fix = "without API keys listen on loopback, such as 127.0.0.1:8080"
	if strings.HasPrefix(addr, "unix:") {
		return nil
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q is not host:port: %w", addr, err)
	}
	if host == "localhost" {
		return nil
	}
	if host == "" {
		return fmt.Errorf("listen address %q means every interface: %s", addr, fix)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return fmt.Errorf("listen address %q is a name, which may resolve to anything: %s", addr, fix)
	}
	if !ip.IsLoopback() {
		return fmt.Errorf("listen address %q can be reached by other machines: %s", addr, fix)
	}
	return nil
}

func orDefault[T time.Duration | int](v, d T) T {
	if v <= 0 {
		return d
	}
	return v
}

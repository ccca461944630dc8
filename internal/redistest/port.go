package redistest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports below the range from which kernels take the source ports of outgoing
// connections (32768 upwards on Linux): nobody gets one by accident between
// Kill and Restart, and a client that dials a dead server cannot meet itself.
const (
	lowestPort  = 10_000
	highestPort = 32_767
)

// loopback is where everything of a test listens.
const loopback = "127.0.0.1"

// listen takes a random free port.
func listen() (net.Listener, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort+1)
		var l net.Listener
		if l, err = listenOn(address(port)); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("no free port on %s: %w", loopback, err)
}

func listenOn(addr string) (net.Listener, error) {
	var config net.ListenConfig
	return config.Listen(context.Background(), "tcp", addr)
}

// freePort names a port that was free a moment ago. Another process may be
// quicker, so whoever uses it must be ready to ask for the next one.
func freePort() (int, error) {
	l, err := listen()
	if err != nil {
		return 0, err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return 0, fmt.Errorf("address of a listener: %w", err)
	}
	return strconv.Atoi(port)
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

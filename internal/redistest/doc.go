// Package redistest gives tests a real Redis: servers of their own that they
// may stop, kill and restart, one server that the tests of a binary share, a
// three-node cluster, and a TCP proxy that delays, cuts and loses replies.
//
// Which to take: [Shared] with a [Name] for everything that only uses Redis;
// [Start] for faults and configuration; [Cluster] for hash tags and
// redirections; [Proxy] before any of them for trouble on the wire.
//
// A missing redis-server fails the test; it never skips it.
package redistest

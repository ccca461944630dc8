// Package bucket holds the limits of one dependency and decides over them.
//
// Limits come in five kinds (token bucket, concurrency, calendar quota, sliding window, sliding log). Their state lives
// in Redis, all of a dependency on one slot; one script call checks every limit of every ask it carries and takes only
// where all of them fit. The same arithmetic stands a second time in Go (model.go): it is the oracle of the tests, step
// by step, and the ground for answers without Redis, which the client library brings.
//
// A call goes one way through the package:
//
//	Limiter.Do -> Coalescer (asks gather while a call is in flight) -> encode -> decide.lua -> decode -> Answer
//
// # Arithmetic
//
// A refill is N tokens per P microseconds in lowest terms; a token is P credits, so a bucket refills N credits per
// microsecond and nothing is ever rounded. A bucket stores what is used, in credits, not what is left: a change of
// capacity then needs no conversion and mints nothing. Worked example: capacity 5, refill 2/s is N=1, P=500000; after 5
// asks used is 2500000 credits, a sixth of cost 1 fits after (2500000+500000-2500000)/1 = 500000 microseconds.
//
// # Clock
//
// Redis TIME is the only clock. Each dependency runs on a time of its own that never steps back: TIME plus an offset
// kept in meta, which grows by the difference when TIME is found behind the latest instant that was written. Calendar
// windows alone follow TIME itself.
package bucket

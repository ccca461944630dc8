package bucket

import (
	"crypto/sha256"
	"encoding/base32"
	"strconv"
	"strings"
	"time"
)

// Keys of a dependency. The braces are the hash tag that keeps them all on one slot; a dependency's name holds none.
const keyPrefix = "sluice:{"

// Prefix is what every key of the dependency begins with.
func Prefix(dependency string) string { return keyPrefix + dependency + "}:" }

// MetaKey is the hash of the dependency's policy version, clock and births.
func MetaKey(dependency string) string { return Prefix(dependency) + "meta" }

// StateKey is the hash of the limits that count for the whole dependency.
func StateKey(dependency string) string { return stateKeyOf(Prefix(dependency)) }

// stateKeyOf is the hash of the dependency's limits, tenantKeyOf that of one tenant's. What callers name never enters a key
// raw: 128 bits of its hash do.
func stateKeyOf(prefix string) string { return prefix + "s" }

func tenantKeyOf(prefix, tenant string) string {
	h := sha256.Sum256([]byte(tenant))
	var b [26]byte
	lower.Encode(b[:], h[:16])
	return prefix + "s:" + string(b[:])
}

var lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding) //nolint:gochecknoglobals // a constant table

// encoder writes a batch as the script's KEYS and ARGV; lua/call.lua says what they mean.
type encoder struct {
	prefix string
	now    time.Time // the caller's idea of the Redis clock, for windows
	keys   []string
	args   []any

	rows    map[rowKey]int
	rowArgs []any
	hashes  map[string]int
	shapes  map[shapeKey]int
	sets    map[string]bool // sets of ends in keys
	shapeN  int
	shapeAr []any
	items   []any

	tenantKeys map[string]string // by tenant, of this batch and earlier ones
}

// maxTenantKeys bounds how many tenants' keys an encoder remembers, because to hash a name takes longer than all else that
// an ask needs here.
const maxTenantKeys = 4096

// shapeKey tells the shapes apart that are written once; those with a minimum or many units are written for each ask.
type shapeKey struct {
	set   *Set
	costs [4]int64
}

type rowKey struct {
	limit *Limit
	field string
}

func newEncoder(prefix string) *encoder {
	return &encoder{
		prefix: prefix, keys: []string{prefix + "meta", stateKeyOf(prefix)},
		rows: map[rowKey]int{}, hashes: map[string]int{}, shapes: map[shapeKey]int{}, tenantKeys: map[string]string{}, sets: map[string]bool{},
	}
}

// reset makes the encoder ready for another batch; what it returned before is overwritten by that.
func (e *encoder) reset(now time.Time) {
	e.now, e.shapeN = now, 0
	clear(e.rows)
	clear(e.hashes)
	clear(e.sets)
	clear(e.shapes)
	clear(e.args) // they hold on to what callers gave
	clear(e.items)
	e.keys, e.args, e.rowArgs, e.shapeAr, e.items = e.keys[:2], e.args[:0], e.rowArgs[:0], e.shapeAr[:0], e.items[:0]
	if len(e.tenantKeys) > maxTenantKeys {
		clear(e.tenantKeys)
	}
}

// encode returns KEYS and ARGV of a batch, which are the encoder's own. now is the caller's idea of the Redis clock; version
// is that of the policy which must be in force, empty: any; number, when not empty, makes the call repeatable under the
// reply key.
func (e *encoder) encode(now time.Time, version string, batch []*call, number, replyKey string) (keys []string, args []any) {
	e.reset(now)
	var runSet *Set
	var runShape, runHash, run int
	flush := func() {
		if run > 0 {
			e.items = append(e.items, "r", run, runShape, runHash)
		}
		run = 0
	}
	for _, c := range batch {
		if c.group {
			flush()
			e.items = append(e.items, "g", len(c.asks))
		}
		for i := range c.asks {
			a := &c.asks[i]
			shape, hash := e.shape(a), e.hash(a)
			if a.plain() && !c.group {
				if run > 0 && (a.Set != runSet || shape != runShape || hash != runHash) {
					flush()
				}
				runSet, runShape, runHash = a.Set, shape, hash
				run++
				continue
			}
			flush()
			e.item(a, shape, hash)
			e.declare(a, hash)
		}
	}
	flush()
	if number != "" {
		e.keys = append(e.keys, replyKey)
	}
	e.args = append(e.args, version, e.prefix, number, replyKey, len(e.rows))
	e.args = append(e.args, e.rowArgs...)
	e.args = append(e.args, e.shapeN)
	e.args = append(e.args, e.shapeAr...)
	e.args = append(e.args, e.items...)
	return e.keys, e.args
}

func (e *encoder) hash(a *Ask) int {
	if !a.Set.tenants && !a.ends() {
		return 0
	}
	h, ok := e.hashes[a.Tenant]
	if !ok {
		key, known := e.tenantKeys[a.Tenant]
		if !known {
			key = tenantKeyOf(e.prefix, a.Tenant)
			e.tenantKeys[strings.Clone(a.Tenant)] = key
		}
		e.keys = append(e.keys, key)
		h = len(e.keys)
		e.hashes[a.Tenant] = h
	}
	return h
}

func (e *encoder) shape(a *Ask) int {
	s := a.Set
	once := a.Min == nil && len(s.units) <= 4
	var key shapeKey
	if once {
		key.set = s
		for u := range s.units {
			key.costs[u] = a.cost(u)
		}
		if n, ok := e.shapes[key]; ok {
			return n
		}
	}
	e.shapeN++
	if once {
		e.shapes[key] = e.shapeN
	}
	out := append(e.shapeAr, int(s.anchor), len(s.limits))
	for i, l := range s.limits {
		out = append(out, e.row(l, s.fields[i]), s.unit[i]+1)
	}
	out = append(out, len(s.units))
	for u := range s.units {
		out = append(out, max(0, a.cost(u)))
	}
	if a.Min == nil {
		out = append(out, 0)
	} else {
		out = append(out, 1)
		for u := range s.units {
			out = append(out, a.floor(u))
		}
	}
	e.shapeAr = out
	return e.shapeN
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (e *encoder) row(l *Limit, field string) int {
	k := rowKey{l, field}
	if n, ok := e.rows[k]; ok {
		return n
	}
	identity, _, _ := strings.Cut(field, "/") // rather than made anew for each batch
	sp := l.spacing()
	var kind int
	var a, b, c, d, life int64
	switch l.Kind {
	case TokenBucket:
		kind, a, b, c = 1, l.Refill.N, l.Refill.P, int64(flag(l.Debt))
		life = l.Size*l.Refill.P/l.Refill.N/1000 + 1
	case Concurrency:
		kind, a = 2, l.Hold.Microseconds()
		life = l.Hold.Milliseconds()
	case SlidingLog:
		kind, a, b = 2, l.Window.Microseconds(), 1
		life = l.Window.Milliseconds()
	case Quota:
		kind = 3
		start, end, next := l.Every.Windows(e.now)
		_, _, after := l.Every.Windows(end)
		a, b, c, d = start.UnixMicro(), end.UnixMicro(), next.UnixMicro(), after.UnixMicro()
		life = (d-a)/1000 + 3_600_000
	case SlidingWindow:
		kind, a = 4, l.Window.Milliseconds()
		life = 3 * l.Window.Milliseconds()
	}
	ttl := life + 3*MaxAhead.Milliseconds()
	e.rowArgs = append(e.rowArgs, kind, flag(l.ofTenant()), field, identity, flag(l.Shadow), flag(l.OnExceeded == Reject),
		l.Size, sp.N, sp.P, ttl, a, b, c, d)
	e.rows[k] = len(e.rows) + 1
	return e.rows[k]
}

func (e *encoder) item(a *Ask, shape, hash int) {
	switch a.Verb {
	case Take, Reserve:
		wait, settle := int64(-1), int64(-1)
		if a.Verb == Reserve {
			wait = a.MaxWait.Microseconds()
		}
		if a.SettleWithin > 0 {
			settle = a.SettleWithin.Microseconds()
		}
		e.items = append(e.items, "k", shape, hash, a.ID, a.Key, a.Fingerprint, a.KeyTTL.Milliseconds(), settle, wait,
			flag(a.DryRun), a.Tenant, a.Class)
	case View:
		e.items = append(e.items, "v", shape, hash)
	case Undo:
		e.items = append(e.items, "u", shape, hash, a.ID, a.slot)
		for u := range a.Set.units {
			e.items = append(e.items, a.cost(u))
		}
	case Settle:
		e.items = append(e.items, "s", shape, hash, a.ID)
		for u := range a.Set.units {
			e.items = append(e.items, a.Costs[u])
		}
	case Release:
		e.items = append(e.items, "l", shape, hash, a.ID)
	case Extend:
		e.items = append(e.items, "x", shape, hash, a.ID, a.MaxWait.Microseconds())
	case Cancel:
		e.items = append(e.items, "c", shape, hash, a.ID)
	}
}

// declare adds to KEYS what the script names by itself. It would find them without, since they share the slot; but while a
// cluster moves that slot, a call that does not declare them may fail between two writes instead of before the first.
func (e *encoder) declare(a *Ask, hash int) {
	if a.Key != "" {
		e.keys = append(e.keys, e.prefix+"idem:"+a.Key)
	}
	if a.named() {
		e.keys = append(e.keys, e.prefix+"g:"+a.ID)
	}
	for i, l := range a.Set.limits {
		if l.Kind != Concurrency && l.Kind != SlidingLog {
			continue
		}
		of := e.keys[1]
		if l.ofTenant() {
			of = e.keys[hash-1]
		}
		if key := of + "/" + a.Set.fields[i]; !e.sets[key] {
			e.sets[key] = true
			e.keys = append(e.keys, key)
		}
	}
}

// ends reports whether the ask may end what was charged to limits that are gone since.
func (a *Ask) ends() bool { return a.Verb == Settle || a.Verb == Release }

// named reports whether the ask reads or leaves a grant.
func (a *Ask) named() bool {
	switch a.Verb {
	case Take:
		return !a.DryRun && (a.SettleWithin > 0 || a.Set.ends)
	case Reserve:
		return !a.DryRun
	case View:
		return false
	case Undo, Settle, Release, Extend, Cancel:
	}
	return true
}

// keys is how many keys of the 256 of a batch the ask may add, besides those that all asks of the dependency share.
func (a *Ask) keys() int {
	n := 0
	if a.Set.tenants || a.ends() {
		n += 1 + a.Set.tenantEnds
	}
	if a.Key != "" {
		n++
	}
	if a.named() {
		n++
	}
	return n
}

func parseInt(x any) (int64, bool) {
	switch v := x.(type) {
	case int64:
		return v, true
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		return n, err == nil
	}
	return 0, false
}

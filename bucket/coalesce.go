package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxUndoTries is how often an undo item is sent at most.
const maxUndoTries = 3

// CoalescerConfig says what is sent and how it is grouped. Only Exec has to be set.
type CoalescerConfig[Q, A any] struct {
	// Exec sends a batch and returns one answer per item, in order, or an error for all of them. It is called for one
	// batch at a time. The slice is its own until it returns. It must return some day; callers do not wait for that
	// longer than they said, but the items after them do.
	Exec func(batch []Q) ([]A, error)
	// Lane names whose item it is, such as its tenant: where more waits than fits into a batch, lanes take turns, so
	// that one caller's flood cannot fill batches. Nil: all share one lane.
	Lane func(Q) string
	// Size is what an item adds to a batch, at least one ask. Nil: one ask and no keys.
	Size func(Q) (asks, keys int)
	// Together reports whether q may share a batch with the batch's first item. Those that may not wait for a later
	// one, in their order. Nil: always.
	Together func(first, q Q) bool
	// Left is called with the answer to an item whose caller left after its batch was sealed. It may return an item
	// that undoes what was done; it goes out with the next batch, before all others, and nobody waits for its answer.
	// If nothing of that batch was run it goes out with the next one again, three times in all; after other errors it may
	// have been done and is not repeated. Nil: nothing is undone.
	Left func(Q, A) (undo Q, ok bool)
	// NothingRan reports whether an error of Exec means that nothing was run. Nil: ErrNotRun does.
	NothingRan func(error) bool

	MaxAsks    int // of a batch; 0: 128
	MaxKeys    int // of a batch; 0: 256
	MaxPending int // items waiting for a batch; 0: 16384
}

// Coalescer groups concurrent calls: while one batch is out, further items gather and go out together as the next one,
// in the order of their arrival. An item that finds nothing under way goes out at once.
//
// What fits into one batch goes out as it is. Where more waits, it is sorted into lanes that take turns, one item each;
// within the batch the order is that of arrival again. A lane that was empty is so served by the next batch as long as
// fewer lanes wait than a batch holds items, and within one round of all lanes otherwise.
//
// An item is exactly one of: executed and answered; executed and handed to Left, if its caller left in between; in a
// batch that failed; never sent.
type Coalescer[Q, A any] struct {
	cfg  CoalescerConfig[Q, A]
	pool sync.Pool // of *waiter

	mu      sync.Mutex
	fresh   []*waiter[Q, A] // in order of arrival, not yet seen by the runner
	seq     uint64          // of the last arrival
	waiting int             // whose callers wait for a batch, in fresh and in lanes
	gone    int             // who left since fresh was last cleaned
	running bool            // a runner is at work
	closed  bool
	idle    sync.Cond // running has become false

	// Only the runner uses what follows; a runner's start and end under mu hand it on.
	spare []*waiter[Q, A] // fresh is swapped with it
	lanes waiterLanes[Q, A]
	undo  []undoItem[Q]
	batch waiterBatch[Q, A]
}

// The states of a waiter.
const (
	itemWaits    int32 = iota // for a batch; its caller or the runner may end that
	itemSealed                // part of a batch; its caller may still leave
	itemAnswered              // the runner has done with it, its caller owns it alone
	itemLeft                  // its caller has done with it, the runner owns it alone
)

// waiter is one item and its caller. Who moves it to answered or left never touches it again; the other recycles it.
type waiter[Q, A any] struct {
	q          Q
	a          A
	err        error
	lane       string
	asks, keys int
	seq        uint64        // counts arrivals
	next       *waiter[Q, A] // in its lane
	state      atomic.Int32
	done       chan struct{} // gets one value right after answered
	timer      *time.Timer   // the caller's alone
}

type undoItem[Q any] struct {
	q     Q
	tries int
}

// waiterBatch is what one call of Exec carries: undo items first, then waiters.
type waiterBatch[Q, A any] struct {
	items      []Q
	undo       []undoItem[Q]
	waiters    []*waiter[Q, A]
	asks, keys int
}

// NewCoalescer returns a Coalescer. It holds no goroutine while it is idle; Close ends it.
func NewCoalescer[Q, A any](cfg CoalescerConfig[Q, A]) *Coalescer[Q, A] {
	cfg.MaxAsks = cmp.Or(cfg.MaxAsks, 128)
	cfg.MaxKeys = cmp.Or(cfg.MaxKeys, 256)
	cfg.MaxPending = cmp.Or(cfg.MaxPending, 16384)
	if cfg.NothingRan == nil {
		cfg.NothingRan = func(err error) bool { return errors.Is(err, ErrNotRun) }
	}
	c := &Coalescer[Q, A]{cfg: cfg}
	c.idle.L = &c.mu
	c.lanes.byName = map[string]*waiterLane[Q, A]{}
	return c
}

// Do sends q with the next batch that has room and returns its answer. It waits at most within; 0 or less sets no time.
//
// Errors: ctx's own when ctx ends first, ErrTimeout when within does, ErrOverloaded when MaxPending wait already,
// ErrClosed after Close, and whatever Exec returned for the batch. A caller that leaves before its batch is sealed has
// asked for nothing; afterwards its answer goes to Left.
func (c *Coalescer[Q, A]) Do(ctx context.Context, q Q, within time.Duration) (answer A, err error) {
	if err := ctx.Err(); err != nil {
		return answer, err
	}
	w := c.newWaiter(q)
	if err := c.join(w); err != nil {
		c.recycle(w)
		return answer, err
	}
	var expired <-chan time.Time
	if within > 0 {
		if w.timer == nil {
			w.timer = time.NewTimer(within)
		} else {
			w.timer.Reset(within)
		}
		expired = w.timer.C
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		err = ctx.Err()
	case <-expired:
		err = ErrTimeout
	}
	if err != nil {
		if w.state.CompareAndSwap(itemWaits, itemLeft) {
			c.withdrawn()
			return answer, err
		}
		if w.state.CompareAndSwap(itemSealed, itemLeft) {
			return answer, err
		}
		<-w.done // the answer came first
	}
	answer, err = w.a, w.err
	c.recycle(w)
	return answer, err
}

// Close refuses new items with ErrClosed and returns when all that was accepted has been answered and undo items that
// are left have been sent. It may be called more than once.
func (c *Coalescer[Q, A]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if !c.running && len(c.undo) > 0 {
		c.running = true
		go c.run()
	}
	for c.running {
		c.idle.Wait()
	}
}

// join puts w to those who wait and sees to it that a runner is at work.
func (c *Coalescer[Q, A]) join(w *waiter[Q, A]) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if c.waiting >= c.cfg.MaxPending {
		return ErrOverloaded
	}
	c.seq++
	w.seq = c.seq
	c.waiting++
	c.fresh = append(c.fresh, w)
	if !c.running {
		c.running = true
		go c.run()
	}
	return nil
}

// withdrawn accounts for a caller that left before its batch was sealed. The runner skips such items; but Exec may take
// long while callers come and go, so once they are the greater part they are cleaned out here.
func (c *Coalescer[Q, A]) withdrawn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	c.gone++
	if c.gone < c.cfg.MaxAsks || 2*c.gone < len(c.fresh) {
		return
	}
	c.gone = 0
	c.fresh = slices.DeleteFunc(c.fresh, c.dropLeft)
}

// dropLeft takes back a waiter whose caller has left.
func (c *Coalescer[Q, A]) dropLeft(w *waiter[Q, A]) bool {
	left := w.state.Load() == itemLeft
	if left {
		c.recycle(w)
	}
	return left
}

// run sends batches until nothing waits.
func (c *Coalescer[Q, A]) run() {
	growStack(0)
	for c.seal() {
		if len(c.batch.items) > 0 {
			c.deliver(c.exec())
		}
	}
}

// seal decides what goes with the next batch, which is nothing if all have left. It is false when the runner has ended.
func (c *Coalescer[Q, A]) seal() bool {
	c.mu.Lock()
	if len(c.fresh) == 0 && c.lanes.n == 0 && !c.undoDrives() {
		c.running = false
		c.idle.Broadcast()
		c.mu.Unlock()
		return false
	}
	c.fresh, c.spare = c.spare, c.fresh
	c.gone = 0
	alive := c.waiting
	c.mu.Unlock()

	c.sealUndo()
	direct := c.lanes.n == 0 && c.fits(c.spare)
	for _, w := range c.spare {
		switch {
		case c.dropLeft(w):
		case direct && c.joins(w.q):
			c.sealOne(w)
		default:
			c.lanes.add(w)
		}
	}
	clear(c.spare)
	c.spare = c.spare[:0]
	// Those who left go when their turn comes; when they are most of what is there, at once.
	if c.lanes.n > 2*alive+c.cfg.MaxAsks {
		c.lanes.sweep(c.dropLeft)
	}
	if !direct {
		c.sealLanes()
	}

	c.mu.Lock()
	c.waiting -= len(c.batch.waiters)
	c.mu.Unlock()
	return true
}

// undoDrives reports whether there are undo items for whose sake alone a batch is sent. One that failed waits for
// others to go out with: a store in trouble is not tried for its sake. A Coalescer that closes waits for nothing.
func (c *Coalescer[Q, A]) undoDrives() bool {
	return slices.ContainsFunc(c.undo, func(u undoItem[Q]) bool { return c.closed || u.tries == 0 })
}

// sealUndo begins the batch with the undo items that have room.
func (c *Coalescer[Q, A]) sealUndo() {
	b := &c.batch
	c.undo = slices.DeleteFunc(c.undo, func(u undoItem[Q]) bool {
		asks, keys := c.size(u.q)
		if !c.room(asks, keys) || !c.joins(u.q) {
			return false
		}
		b.undo, b.items = append(b.undo, u), append(b.items, u.q)
		b.asks, b.keys = b.asks+asks, b.keys+keys
		return true
	})
}

// fits reports whether all of them and what the batch has already go into one batch.
func (c *Coalescer[Q, A]) fits(ws []*waiter[Q, A]) bool {
	asks, keys := c.batch.asks, c.batch.keys
	for _, w := range ws {
		asks, keys = asks+w.asks, keys+w.keys
	}
	return asks <= c.cfg.MaxAsks && keys <= c.cfg.MaxKeys
}

// sealLanes fills the batch from the lanes in turn, and ends with the first item that has no room. Its lane, and those
// whose head may not join, come first in the next batch.
func (c *Coalescer[Q, A]) sealLanes() {
	ls, first := &c.lanes, len(c.batch.waiters)
	sitOut, i := 0, 0 // what ring holds: lanes that sit out, lanes that had their turn, lanes whose turn comes
	for i < len(ls.ring) {
		l, w := ls.ring[i], ls.ring[i].head
		left := w.state.Load() == itemLeft
		if !left && !c.room(w.asks, w.keys) {
			break
		}
		if !left && !c.joins(w.q) {
			ls.ring[sitOut] = l
			sitOut, i = sitOut+1, i+1
			continue
		}
		l.head = w.next
		ls.n--
		sealed := c.sealOne(w)
		if l.head == nil {
			ls.end(l)
			i++
		} else if sealed { // one that has left does not cost its lane the turn
			ls.ring = append(ls.ring, l)
			i++
		}
	}
	ls.ring = slices.Delete(ls.ring, sitOut, i)
	// What several lanes gave is put back into the order of arrival.
	ws := c.batch.waiters[first:]
	slices.SortFunc(ws, func(a, b *waiter[Q, A]) int { return cmp.Compare(a.seq, b.seq) })
	items := c.batch.items[len(c.batch.items)-len(ws):]
	for i, w := range ws {
		items[i] = w.q
	}
}

// sealOne adds w to the batch unless its caller has left.
func (c *Coalescer[Q, A]) sealOne(w *waiter[Q, A]) bool {
	if !w.state.CompareAndSwap(itemWaits, itemSealed) {
		c.recycle(w)
		return false
	}
	b := &c.batch
	b.waiters, b.items = append(b.waiters, w), append(b.items, w.q)
	b.asks, b.keys = b.asks+w.asks, b.keys+w.keys
	return true
}

// room reports whether the batch has room. An empty one has room for anything.
func (c *Coalescer[Q, A]) room(asks, keys int) bool {
	b := &c.batch
	return len(b.items) == 0 || b.asks+asks <= c.cfg.MaxAsks && b.keys+keys <= c.cfg.MaxKeys
}

func (c *Coalescer[Q, A]) joins(q Q) bool {
	return c.cfg.Together == nil || len(c.batch.items) == 0 || c.cfg.Together(c.batch.items[0], q)
}

// exec sends the batch. Whatever goes wrong is an error for the batch and nothing else.
func (c *Coalescer[Q, A]) exec() (answers []A, err error) {
	defer func() {
		if r := recover(); r != nil {
			answers, err = nil, fmt.Errorf("coalescer: panic: %v", r)
		}
	}()
	answers, err = c.cfg.Exec(c.batch.items)
	if err == nil && len(answers) != len(c.batch.items) {
		return nil, fmt.Errorf("coalescer: %d answers to %d items", len(answers), len(c.batch.items))
	}
	return answers, err
}

// deliver tells everybody in the batch what came of it, and empties it.
func (c *Coalescer[Q, A]) deliver(answers []A, err error) {
	b := &c.batch
	if err == nil {
		answers = answers[len(b.undo):]
	} else if c.cfg.NothingRan(err) { // to give back twice mints capacity, not to give back wastes a little of it
		for _, u := range b.undo {
			if u.tries++; u.tries < maxUndoTries {
				c.undo = append(c.undo, u)
			}
		}
	}
	for i, w := range b.waiters {
		if err == nil {
			w.a = answers[i]
		}
		w.err = err
		if w.state.CompareAndSwap(itemSealed, itemAnswered) {
			w.done <- struct{}{}
			continue
		}
		if err == nil && c.cfg.Left != nil {
			if q, ok := c.cfg.Left(w.q, w.a); ok {
				c.undo = append(c.undo, undoItem[Q]{q: q})
			}
		}
		c.recycle(w)
	}
	clear(b.items)
	clear(b.undo)
	clear(b.waiters)
	*b = waiterBatch[Q, A]{items: b.items[:0], undo: b.undo[:0], waiters: b.waiters[:0]}
}

func (c *Coalescer[Q, A]) newWaiter(q Q) *waiter[Q, A] {
	w, ok := c.pool.Get().(*waiter[Q, A])
	if !ok {
		w = &waiter[Q, A]{done: make(chan struct{}, 1)}
	}
	w.q = q
	w.asks, w.keys = c.size(q)
	if c.cfg.Lane != nil {
		w.lane = c.cfg.Lane(q)
	}
	return w
}

// recycle takes back a waiter that nobody else can touch any more.
func (c *Coalescer[Q, A]) recycle(w *waiter[Q, A]) {
	if w.timer != nil {
		w.timer.Stop() // and, since Go 1.23, its channel is empty
	}
	w.q, w.a, w.err, w.lane, w.next = *new(Q), *new(A), nil, "", nil
	w.state.Store(itemWaits)
	c.pool.Put(w)
}

func (c *Coalescer[Q, A]) size(q Q) (asks, keys int) {
	if c.cfg.Size == nil {
		return 1, 0
	}
	asks, keys = c.cfg.Size(q)
	return max(asks, 1), max(keys, 0)
}

// growStack makes the stack of a new goroutine as large as a command needs, at once and while there is nothing on it yet.
// Otherwise it doubles several times deep within the client, and each time all frames are walked.
//
//go:noinline
func growStack(i int) byte {
	var frame [8 << 10]byte
	return frame[i]
}

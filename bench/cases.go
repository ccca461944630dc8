package main

import (
	"strconv"

	"github.com/sluicehq/sluice/admission"
	"github.com/sluicehq/sluice/bucket"
)

// goal is a ratio to be met: of decisions a second, or where latency is set, of the median latency.
type goal struct {
	against string  // the other contender
	ratio   float64 // ours divided by the other's is at least this, or for latency at most
	latency bool
}

// contest is one load with those who bear it; the first is ours.
type contest struct {
	name       string
	callers    int
	capacity   float64 // of the bucket that all share, 0: no one limit to check
	refill     float64 // per second
	contenders []contender
	goals      []goal
}

// Rates of the buckets, per second: one that never runs dry under this load, and one that does at once.
const (
	plenty = 10_000_000
	scarce = 1_000
)

func tokenBucket(name string, per bucket.Per, perSecond int64) admission.LimitDocument {
	// The only errors are of rates out of range, which Compile names again.
	refill, _ := bucket.ParseRate(strconv.FormatInt(perSecond, 10) + "/s")
	return admission.LimitDocument{Name: name, Kind: bucket.TokenBucket, Per: per, Capacity: &perSecond, Refill: &refill}
}

func document(limits ...admission.LimitDocument) admission.DependencyDocument {
	return admission.DependencyDocument{Limits: limits}
}

// contests lists what is measured.
func contests() []contest {
	daily := int64(1) << 36
	one := document(tokenBucket("rate", bucket.PerDependency, plenty))
	dry := document(tokenBucket("rate", bucket.PerDependency, scarce))
	own := document(tokenBucket("own", bucket.PerTenant, plenty))
	all := document(
		tokenBucket("rate", bucket.PerDependency, plenty),
		tokenBucket("own", bucket.PerTenant, plenty),
		admission.LimitDocument{Name: "daily", Kind: bucket.Quota, Limit: &daily, Every: bucket.Day},
	)
	rr, rrDry := redisRate(plenty), redisRate(scarce)
	ap, apDry := autoPipeline(one), autoPipeline(dry)
	hot := func(name string, callers int, goals ...goal) contest {
		return contest{
			name: name, callers: callers, capacity: plenty, refill: plenty, goals: goals,
			contenders: []contender{ours(one, plainAsk), rr, ap, bare(1, false)},
		}
	}
	empty := func(name string, callers int, goals ...goal) contest {
		return contest{
			name: name, callers: callers, capacity: scarce, refill: scarce, goals: goals,
			contenders: []contender{ours(dry, plainAsk), rrDry, apDry},
		}
	}
	spread := func(name string, doc admission.DependencyDocument, keys bool, ratio float64) contest {
		return contest{
			name: name, callers: 512, goals: []goal{{against: rr.name, ratio: ratio}},
			contenders: []contender{ours(doc, tenantAsk(256, keys)), rr, bare(256, keys)},
		}
	}
	return []contest{
		hot("hot-512", 512, goal{against: rr.name, ratio: 30}, goal{against: ap.name, ratio: 8}),
		empty("dry-512", 512, goal{against: rr.name, ratio: 30}, goal{against: ap.name, ratio: 8}),
		hot("hot-64", 64, goal{against: rr.name, ratio: 8}),
		empty("dry-64", 64, goal{against: rr.name, ratio: 8}),
		hot("hot-1", 1, goal{against: rr.name, ratio: 1.2, latency: true}),
		empty("dry-1", 1, goal{against: rr.name, ratio: 1.2, latency: true}),
		spread("tenants-512", own, false, 8),
		spread("three-512", all, false, 8),
		spread("tenants-keyed-512", own, true, 5),
		spread("three-keyed-512", all, true, 5),
	}
}

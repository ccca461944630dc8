package bucket

import "time"

// Period is how long a calendar window is.
type Period string

// The periods of a Quota.
const (
	Minute Period = "minute"
	Hour   Period = "hour"
	Day    Period = "day"
	Week   Period = "week"
	Month  Period = "month"
)

// Calendar cuts time into the windows of a Quota, by the clock on the wall of its location.
//
// Days, weeks and months begin at StartsAt of a local day. Where daylight saving skips that time the window begins at
// the first instant after the gap; where it comes twice, at the first. A day is then 23 or 25 hours long.
//
// Hours and minutes begin whenever the local clock reads a full one, or jumps forward past one. So the hour that comes
// twice in autumn is two windows, in zones that differ from UTC by 30 or 45 minutes hours begin at that minute, and on
// Lord Howe Island, where clocks change by half an hour, one window in autumn lasts 90 minutes and one in spring 30.
//
// Windows are half-open, follow each other without a gap and every instant lies in exactly one.
type Calendar struct {
	Every    Period
	Location *time.Location // nil: UTC
	// StartsAt is the time of day, 0 to below 24 h, at which days, weeks and months begin.
	StartsAt time.Duration
	// Weekday is when weeks begin. Mind that its zero value is Sunday; policies say Monday by default.
	Weekday time.Weekday
	// DayOfMonth is when months begin, 1 to 31; 0 means 1. A month that is shorter begins on its last day.
	DayOfMonth int
}

// Windows gives the window [start, end) that holds t, and the end of the one that follows it: [end, next). It does not
// allocate and takes about a microsecond.
func (c Calendar) Windows(t time.Time) (start, end, next time.Time) {
	loc := c.Location
	if loc == nil {
		loc = time.UTC
	}
	t = t.In(loc)
	switch c.Every {
	case Minute, Hour:
		unit := int64(60)
		if c.Every == Hour {
			unit = 3600
		}
		start = lastReading(t, unit)
		end = nextReading(t, unit)
		return start, end, nextReading(end, unit)
	case Day, Week, Month:
	}
	i := c.index(t)
	for start = c.begin(i, loc); start.After(t); start = c.begin(i, loc) {
		i--
	}
	// A day that a zone skipped (Samoa, 30 December 2011) begins when the next one does: it is no window.
	for {
		i++
		if end = c.begin(i, loc); end.After(t) {
			break
		}
		start = end
	}
	for next = end; !next.After(end); {
		i++
		next = c.begin(i, loc)
	}
	return start, end, next
}

// length is the nominal length of a window; a month has 30 days.
func (c Calendar) length() time.Duration {
	switch c.Every {
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return 24 * time.Hour
	case Week:
		return 7 * 24 * time.Hour
	case Month:
		return 30 * 24 * time.Hour
	}
	return 0
}

const daySeconds = 86_400

// index numbers the day, week or month in which the local date of t lies, roughly: Windows looks around it.
func (c Calendar) index(t time.Time) int64 {
	if c.Every == Month {
		return int64(t.Year())*12 + int64(t.Month()) - 1
	}
	_, offset := t.Zone()
	day := floorDiv(t.Unix()+int64(offset), daySeconds)
	if c.Every == Week {
		return floorDiv(day-c.firstWeek(), 7)
	}
	return day
}

// firstWeek is the day, counted from 1970-01-01, a Thursday, on which week 0 begins.
func (c Calendar) firstWeek() int64 { return int64(c.Weekday) - int64(time.Thursday) }

// begin is the instant at which window number i begins.
func (c Calendar) begin(i int64, loc *time.Location) time.Time {
	var day int64
	switch c.Every {
	case Month:
		year, month := int(floorDiv(i, 12)), time.Month(i-12*floorDiv(i, 12)+1)
		last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC)
		day = floorDiv(last.Unix(), daySeconds)
		if want := max(c.DayOfMonth, 1); want < last.Day() {
			day -= int64(last.Day() - want)
		}
	case Week:
		day = c.firstWeek() + 7*i
	case Minute, Hour, Day:
		day = i
	}
	return firstReach(day*daySeconds+int64(c.StartsAt/time.Second), loc)
}

// firstReach is the first instant at which the clock of the location reads the wall time or a later one; wall is what
// the Unix time would be if the location were UTC. Later wall times are never reached earlier, which is what keeps
// windows in order.
func firstReach(wall int64, loc *time.Location) time.Time {
	const farthest = 26 * 3600 // no zone is farther from UTC
	t := time.Unix(wall-farthest, 0).In(loc)
	for {
		_, offset := t.Zone()
		from, to := bounds(t)
		at := time.Unix(wall-int64(offset), 0).In(loc)
		if !from.IsZero() && at.Before(from) {
			return from
		}
		if to.IsZero() || at.Before(to) {
			return at
		}
		t = to
	}
}

// lastReading is the last instant up to t at which the local clock read a multiple of unit seconds or jumped past one.
func lastReading(t time.Time, unit int64) time.Time {
	for {
		_, offset := t.Zone()
		from, _ := bounds(t)
		at := time.Unix(floorDiv(t.Unix()+int64(offset), unit)*unit-int64(offset), 0).In(t.Location())
		if from.IsZero() || !at.Before(from) {
			return at
		}
		if jumps(from, unit) {
			return from
		}
		t = from.Add(-1)
	}
}

// nextReading is the first instant after t at which the local clock reads a multiple of unit seconds or jumps past one.
func nextReading(t time.Time, unit int64) time.Time {
	for {
		_, offset := t.Zone()
		_, to := bounds(t)
		at := time.Unix((floorDiv(t.Unix()+int64(offset), unit)+1)*unit-int64(offset), 0).In(t.Location())
		if to.IsZero() || at.Before(to) {
			return at
		}
		if jumps(to, unit) {
			return to
		}
		t = to
	}
}

// jumps reports whether the local clock, which is set at the given instant, then reads a multiple of unit seconds or
// was set forward past one.
func jumps(at time.Time, unit int64) bool {
	_, before := at.Add(-1).Zone()
	_, after := at.Zone()
	old, now := at.Unix()+int64(before), at.Unix()+int64(after)
	if floorDiv(now, unit)*unit == now {
		return true
	}
	return old < now && -floorDiv(-old, unit)*unit < now
}

// bounds is t.ZoneBounds, from <= t < to, which Go (1.26) breaks beyond the table of a zone: on 31 December of leap
// years it says that the offset ended before t. A bound at which nothing changes is harmless here.
func bounds(t time.Time) (from, to time.Time) {
	from, to = t.ZoneBounds()
	if !to.IsZero() && !to.After(t) {
		to = t.Add(24 * time.Hour)
	}
	return from, to
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

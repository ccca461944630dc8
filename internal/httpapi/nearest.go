package httpapi

import "strings"

// nearest finds the name in the comma-separated list that differs least from the one that was written, if it differs by
// little: other case or hyphens count for nothing, otherwise up to a third of the letters may be wrong.
func nearest(written, known string) string {
	plain := strings.NewReplacer("-", "_").Replace(strings.ToLower(written))
	best, least := "", len(plain)/3+1
	for name := range strings.SplitSeq(known, ", ") {
		if d := distance(plain, name); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance is the number of letters to insert, delete or replace (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal = row[j+1]
			row[j+1] = d
		}
	}
	return row[len(b)]
}

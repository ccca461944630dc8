package admission

import (
	"strconv"
	"strings"
)

// Path says where in a policy document something stands: dependencies.shopify.limits[0].refill. Keys of other than
// letters, digits, - and _ are quoted, so that no two places have the same path: dependencies["a.b"].limits.
type Path string

// Key is the path of a map's entry or of a field.
func (p Path) Key(key string) Path {
	plain := key != "" && strings.IndexFunc(key, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
	switch {
	case !plain:
		return p + Path("["+strconv.Quote(key)+"]")
	case p == "":
		return Path(key)
	}
	return p + "." + Path(key)
}

// Index is the path of a list's item.
func (p Path) Index(i int) Path { return p + Path("["+strconv.Itoa(i)+"]") }

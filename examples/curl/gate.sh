#!/usr/bin/env bash
# A tour of the gate with curl. Start `go run ./cmd/broker dev` first, then run this:
#
#   examples/curl/gate.sh [http://127.0.0.1:8080]
#
# It stops with exit code 1 where an answer is not what it explains.
set -euo pipefail

broker=${1:-http://127.0.0.1:8080}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
status='' body=''

# request METHOD PATH [BODY [HEADER]] sends a request and shows it with its answer; status and body hold the answer.
request() {
	local args=(-sS --max-time 20 -X "$1" -D "$dir/headers" -o "$dir/body" -w '%{http_code}')
	if [ -n "${3:-}" ]; then args+=(-H 'Content-Type: application/json' -d "$3"); fi
	if [ -n "${4:-}" ]; then args+=(-H "$4"); fi
	echo "> $1 $2 ${3:-} ${4:-}"
	status=$(curl "${args[@]}" "$broker$2")
	body=$(cat "$dir/body")
	echo "< $status $body"
}

# field NAME is a text or a number of the last answer.
field() { printf '%s' "$body" | sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# header NAME is a header of the last answer.
header() { tr -d '\r' <"$dir/headers" | sed -n "s/^$1: //Ip"; }

expect() {
	if [ "$status" != "$1" ]; then
		echo "expected $1, got $status" >&2
		exit 1
	fi
}

# admitted DEPENDENCY BODY asks until it is admitted, waiting as long as it is told.
admitted() {
	request POST "/v1/dependencies/$1/admissions" "$2"
	while [ "$status" = 429 ] || [ "$status" = 503 ]; do
		sleep "$(header Retry-After)"
		request POST "/v1/dependencies/$1/admissions" "$2"
	done
	expect 200
}

echo "# 1. Ask. All five tokens of the bucket are taken at once, so the next ask is refused and told when to come again."
request POST /v1/dependencies/demo/admissions '{"cost":5}'
while [ "$status" = 200 ]; do
	request POST /v1/dependencies/demo/admissions '{"cost":5}'
done
expect 429
echo "# Retry-After: $(header Retry-After) (rounded up; retry_after_ms: $(field retry_after_ms)). Wait that long, ask again:"
sleep "$(header Retry-After)"
request POST /v1/dependencies/demo/admissions '{"cost":5}'
expect 200

echo
echo "# 2. Reserve: take tokens for an instant in the future (start_in_ms) instead of asking again and again."
request POST /v1/dependencies/demo/admissions '{"cost":5,"mode":"reserve","wait":"20s"}'
expect 200
request POST /v1/dependencies/demo/admissions '{"cost":5,"mode":"reserve","wait":"20s"}'
expect 200
echo "# Until that instant it can be cancelled, and everything is given back."
request DELETE "/v1/dependencies/demo/tickets/$(field id)"
expect 200

echo
echo "# 3. An LLM call: take an estimate, settle it to what the answer says it cost."
admitted llm '{"tenant":"acme","costs":{"requests":1,"llm_tokens":30000},"settle_later":true}'
request POST "/v1/dependencies/llm/tickets/$(field id)/settle" '{"costs":{"llm_tokens":21000}}'
expect 200

echo
echo "# 4. Concurrency: three at a time. Each admitted ask holds a grant until it is released."
grants=()
for _ in 1 2 3; do
	admitted legacy-db '{}'
	grants+=("$(field id)")
done
request POST /v1/dependencies/legacy-db/admissions '{}'
expect 429
request POST "/v1/dependencies/legacy-db/tickets/${grants[0]}/release"
expect 200
request POST /v1/dependencies/legacy-db/admissions '{}'
expect 200
for id in "$(field id)" "${grants[1]}" "${grants[2]}"; do
	request POST "/v1/dependencies/legacy-db/tickets/$id/release"
done

echo
echo "# 5. Idempotency: an admitted ask that is repeated with its key is answered again, and takes nothing more."
key="Idempotency-Key: \"tour-$$-$RANDOM\""
request POST /v1/dependencies/llm/admissions '{"tenant":"acme"}' "$key"
expect 200
first=$(field id)
request POST /v1/dependencies/llm/admissions '{"tenant":"acme"}' "$key"
expect 200
if [ "$(field id)" != "$first" ] || [ "$(header Idempotent-Replayed)" != true ]; then
	echo "expected the answer $first again" >&2
	exit 1
fi

echo
echo "# 6. A batch: many asks in one request, each decided for itself, or with all_or_nothing together."
request POST /v1/dependencies/llm/admissions/batch \
	'{"items":[{"costs":{"requests":1,"llm_tokens":100}},{"costs":{"requests":1,"llm_tokens":200}}],"all_or_nothing":true}'
expect 200

echo
echo "# Done."

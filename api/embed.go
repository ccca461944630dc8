// Package api holds the description of the HTTP API.
package api

import _ "embed"

//go:embed openapi.yaml
var openapi []byte

// OpenAPI is the description of the HTTP API, OpenAPI 3.1. Do not change the bytes.
func OpenAPI() []byte { return openapi }

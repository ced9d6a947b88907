// Package conformance names the suites of other projects that are run against tidelog: go.mod pins them.
package conformance

import _ "github.com/twmb/franz-go/pkg/kgo"

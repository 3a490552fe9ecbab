// Package userid gives each sandbox a user id of its own and shows files under it.
package userid

const (
	// Count is the number of user ids for sandboxes, and so the maximum number of
	// sandboxes at once.
	Count = 1 << 16
	// Unmapped is the number of an image's ids that are not mapped. Ids of
	// sandboxes must be above.
	Unmapped = 1 << 16
	// DefaultBase begins the last range that fits the octal field of a tar header,
	// which some programs cannot exceed. It lies above the ids of accounts and above
	// the subordinate ids of a machine's first 29 users.
	DefaultBase = 2<<20 - Count
)

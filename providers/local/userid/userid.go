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
	// RangeSize is the number of ids of a sandbox with root, which has a user
	// namespace.
	RangeSize = 1 << 16
	// RangeBase begins the ranges. They fill what systemd leaves unused between the
	// ids of containers and those of foreign images, and lie above the subordinate
	// ids that useradd gives.
	RangeBase = 0x7000_0000
	// RangeEnd is the id after the last range.
	RangeEnd = 0x7FFD_0000
	// Ranges is the maximum number of sandboxes with root at once.
	Ranges = (RangeEnd - RangeBase) / RangeSize
	// NamespaceRootBase begins the Count ids that stand for root in the user namespaces
	// of sandboxes without root, one for each. The runtime uses it to start the sandbox.
	NamespaceRootBase = RangeEnd
	// SystemBase begins the ids that stand there for all others below Unmapped. All
	// sandboxes share them: they are owners of files, and no process can take one.
	// systemd leaves them unused.
	SystemBase = 0x7FFF_0000
)

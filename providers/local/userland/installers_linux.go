package userland

import (
	"os"
	"path"
)

// installers returns the environment in which pip, npm and uv install for the user: the
// system directories are read-only. Programs that they install are on PATH.
func installers(home, systemPath string) map[string]string {
	own := path.Join(home, ".local")
	env := map[string]string{
		"PATH":           path.Join(own, "bin") + ":" + systemPath,
		"PYTHONUSERBASE": own,
		// Without it, pip refuses what Debian and others mark as theirs (PEP 668). It
		// installs for the user where it cannot write, and in a virtual environment as
		// usual, which PIP_USER would forbid.
		"PIP_BREAK_SYSTEM_PACKAGES": "1",
		"NPM_CONFIG_PREFIX":         own,
		// uv's cache is in the home, which is another mount than the workspace: it cannot
		// link files there, and warns about each install that copies them instead.
		"UV_LINK_MODE": "copy",
	}
	// npm looks for its global configuration below its prefix, which has moved.
	for _, prefix := range []string{"/usr/local", "/usr"} {
		if _, err := os.Stat(prefix + "/bin/node"); err == nil {
			env["NPM_CONFIG_GLOBALCONFIG"] = prefix + "/etc/npmrc"
			break
		}
	}
	return env
}

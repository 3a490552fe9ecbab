package userland

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// The generated part of /etc. Another part, only what programs under /usr need,
// is copied from the host. The sandbox's own layer has the rest.
var generatedEtc = map[string]string{
	"hostname":      Hostname + "\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
	"host.conf":     "multi on\n",
	"shells":        "/bin/sh\n",
	"fstab":         "",
}

const (
	// Hostname is the name of the machine inside a sandbox.
	Hostname = "sandbox"
	// Hosts is the content of /etc/hosts.
	Hosts = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n127.0.1.1 " + Hostname + "\n"
)

// copiedEtc are files and trees of the host's /etc that programs read and that
// hold no secrets: the loader's cache, certificates of authorities, the links
// of Debian's alternatives, time zone, names of protocols, and settings of
// languages' installations.
var copiedEtc = []string{
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d",
	"ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "pki/tls/certs", "pki/ca-trust/extracted",
	"alternatives", "localtime", "timezone", "locale.alias", "locale.conf", "default/locale",
	"protocols", "services", "mime.types", "magic", "os-release", "debian_version", "inputrc", "terminfo", "bash.bashrc",
	"python3*", "perl", "java-*", "fonts", "xml", "sgml",
}

// maxEtcFile is the maximum size of a copied file; a bundle of certificates has
// a quarter of it.
const maxEtcFile = 4 << 20

func collectEtc() (map[string]entry, error) {
	out := make(map[string]entry, 1024)
	for name, data := range generatedEtc {
		out["/etc/"+name] = entry{mode: 0o644, data: data}
	}
	for _, pattern := range copiedEtc {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			if err := collect(path, out); err != nil {
				return nil, err
			}
		}
	}
	out["/etc/mtab"] = entry{mode: fs.ModeSymlink, data: "/proc/self/mounts"}
	return out, nil
}

// collect adds what every user of the host may read, so no private keys.
func collect(root string, out map[string]entry) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil
		}
		switch {
		case info.IsDir():
			if info.Mode().Perm()&0o005 != 0o005 {
				return filepath.SkipDir
			}
			out[path] = entry{mode: fs.ModeDir | 0o755}
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return nil
			}
			out[path] = entry{mode: fs.ModeSymlink, data: target}
		case info.Mode().IsRegular() && info.Mode().Perm()&0o004 != 0 && info.Size() <= maxEtcFile:
			data, err := os.ReadFile(path)
			if err != nil {
				return nil
			}
			out[path] = entry{mode: 0o644 | info.Mode().Perm()&0o111, data: string(data)}
		}
		return nil
	})
}

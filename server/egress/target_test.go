package egress

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseTarget(t *testing.T) {
	for _, c := range []struct {
		host string
		want string // Host; empty: malformed
		addr bool
	}{
		{"example.com", "example.com", false},
		{"EXAMPLE.Com", "example.com", false},
		{"example.com.", "example.com", false},
		{"example.com..", "", false},
		{".example.com", "", false},
		{"a..b", "", false},
		{"", "", false},
		{".", "", false},
		{"my_bucket.example.com", "my_bucket.example.com", false},
		{"r3---sn-4g5e.example.com", "r3---sn-4g5e.example.com", false},
		{"bücher.example", "xn--bcher-kva.example", false},
		{"BÜCHER.example", "xn--bcher-kva.example", false},
		{"xn--bcher-kva.example", "xn--bcher-kva.example", false},
		{"XN--BCHER-KVA.example", "xn--bcher-kva.example", false},
		{"xn--example-.com", "", false},
		{"xn--\xff.com", "", false},
		{"example。com", "example.com", false},
		{"ｅｘａｍｐｌｅ.com", "example.com", false},
		{"exa\u00admple.com", "example.com", false},
		{"localhost", "localhost", false},
		{"example.com:443", "", false},
		{"user@example.com", "", false},
		{"example.com/path", "", false},
		{"example.com\x00.evil.com", "", false},
		{"example.com\r\nHost: evil", "", false},
		{"exam ple.com", "", false},
		{"*.example.com", "", false},
		{"%65xample.com", "", false},
		{strings.Repeat("a", 63) + ".com", strings.Repeat("a", 63) + ".com", false},
		{strings.Repeat("a", 64) + ".com", "", false},
		{strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 126) + "a", false},
		{strings.Repeat("a.", 127) + "a", "", false},

		{"93.184.216.34", "93.184.216.34", true},
		{"93.184.216.34.", "93.184.216.34", true},
		{"0x7f.0.0.1", "127.0.0.1", true},
		{"0X7F000001", "127.0.0.1", true},
		{"2130706433", "127.0.0.1", true},
		{"017700000001", "127.0.0.1", true},
		{"0177.0.0.01", "127.0.0.1", true},
		{"127.1", "127.0.0.1", true},
		{"127.0.1", "127.0.0.1", true},
		{"127.65535", "127.0.255.255", true},
		{"0", "0.0.0.0", true},
		{"0x", "0.0.0.0", true},
		{"169.254.43518", "169.254.169.254", true},
		{"１２７.0.0.1", "127.0.0.1", true},
		{"127。0。0。1", "127.0.0.1", true},
		{"①②⑦.0.0.1", "127.0.0.1", true},
		{"256.0.0.1", "", false},
		{"4294967296", "", false},
		{"99999999999999999999", "", false},
		{"08.0.0.1", "", false},
		{"1.2.3.4.5", "", false},
		{"1.2.3.", "1.2.0.3", true},
		{"foo.0x4", "", false},
		{"example.1", "", false},
		{"1_0.0.0.1", "", false},
		{"0x7f-1", "0x7f-1", false},

		{"::1", "::1", true},
		{"[::1]", "::1", true},
		{"[::1", "", false},
		{"::1]", "", false},
		{"[127.0.0.1]", "", false},
		{"2001:DB8::0001", "2001:db8::1", true},
		{"::ffff:127.0.0.1", "127.0.0.1", true},
		{"::ffff:7f00:1", "127.0.0.1", true},
		{"0:0:0:0:0:ffff:a9fe:a9fe", "169.254.169.254", true},
		{"fe80::1%eth0", "", false},
		{"[fe80::1%25eth0]", "", false},
		{"::127.0.0.1", "::7f00:1", true},
		{":::", "", false},
		{"::1::", "", false},
	} {
		target, err := ParseTarget(c.host, 443)
		var denied *Denied
		switch {
		case c.want == "" && (!errors.As(err, &denied) || denied.Reason != ReasonMalformed):
			t.Errorf("ParseTarget(%q) = %v, %v; want a malformed one", c.host, target, err)
		case c.want != "" && (err != nil || target.Host() != c.want || target.IsAddr() != c.addr):
			t.Errorf("ParseTarget(%q) = %v (address: %t), %v; want %s (address: %t)", c.host, target, target.IsAddr(), err, c.want, c.addr)
		}
	}
	for _, port := range []uint32{0, 65536, 1<<32 - 1} {
		if _, err := ParseTarget("example.com", port); err == nil {
			t.Errorf("port %d is accepted", port)
		}
	}
}

// checkNormal reports what is wrong with a parsed host.
func checkNormal(t interface{ Fatalf(string, ...any) }, host string) {
	target, err := ParseTarget(host, 443)
	if err != nil {
		if len(err.Error()) > 1024 || strings.ContainsAny(err.Error(), "\r\n\x00") {
			t.Fatalf("error of %q is not one bounded line: %q", host, err)
		}
		return
	}
	again, err := ParseTarget(target.Host(), 443)
	if err != nil || again != target {
		t.Fatalf("%q is %v, and that is %v, %v", host, target, again, err)
	}
	if !target.IsAddr() && target.Host() != strings.ToLower(target.Host()) {
		t.Fatalf("%q has upper case", target.Host())
	}
	if target.addr.Is4In6() || target.addr.Zone() != "" {
		t.Fatalf("%q is the address %v", host, target.addr)
	}
}

func TestNormalizationIsIdempotent(t *testing.T) {
	part := rapid.OneOf(
		rapid.StringMatching(`[a-zA-Z0-9_-]{1,12}`), rapid.StringMatching(`(0x|0)?[0-9a-f]{1,8}`),
		rapid.SampledFrom([]string{"xn--bcher-kva", "bücher", "ß", "example", "。", "１", "", "*", "[", "]", ":", "::ffff"}),
		rapid.String(),
	)
	rapid.Check(t, func(t *rapid.T) {
		separator := rapid.SampledFrom([]string{".", ".", "．", ":"}).Draw(t, "separator")
		checkNormal(t, strings.Join(rapid.SliceOfN(part, 1, 5).Draw(t, "parts"), separator))
	})
}

func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{"example.com", "bücher.example", "0x7f.1", "::ffff:1.2.3.4", "[::1]", "fe80::1%25eth0", "xn--a", "1.2.3.4."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) { checkNormal(t, host) })
}

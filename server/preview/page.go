package preview

import (
	"crypto/sha256"
	_ "embed" // the page's text
	"encoding/base64"
	"html/template"
)

// retryScript loads the page again, first after a second and later every 30, for ten
// minutes: each attempt is activity of the sandbox, and a forgotten tab must not keep
// it for ever.
const retryScript = `(() => {
  const key = "sandgate-retry", now = Date.now();
  let s = JSON.parse(sessionStorage.getItem(key) || "null");
  if (!s || now - s.last > 60000) s = { first: now, delay: 500 };
  if (now - s.first > 600000) {
    sessionStorage.removeItem(key);
    document.getElementById("retry").textContent = "Reload this page to try again.";
    return;
  }
  s.delay = Math.min(s.delay * 2, 30000);
  s.last = now;
  sessionStorage.setItem(key, JSON.stringify(s));
  setTimeout(() => location.reload(), s.delay);
})();`

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pagePolicy allows the page's own style and script, and nothing else.
var pagePolicy = func() string {
	hash := sha256.Sum256([]byte(retryScript))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
}()

/** Hints for people when the server cannot be reached. */

/** The same words in every client. */
export const HINTS = {
  certificate_expired: "its certificate has expired or is not valid yet: renew it, or set the clocks right",
  certificate_for_another_name:
    "its certificate is for another name: the address must be a name or an IP address in it",
  certificate_untrusted:
    "its certificate is not trusted: the CA file (SANDGATE_CA_FILE) must hold the authority that issued it",
  certificate_wanted:
    "it ended the TLS handshake: it may want a certificate of the client, from an authority that it knows (SANDGATE_CERT_FILE and SANDGATE_KEY_FILE)",
  not_running: "is `sandgate serve` running there?",
  server_speaks_no_tls:
    "it does not speak TLS, and this client does: use http://… or HOST:PORT without a CA file",
  server_speaks_tls: "if it speaks TLS, use https://… or set the CA file (SANDGATE_CA_FILE)",
} as const;

export type Hint = keyof typeof HINTS;

// Parts of what grpc-js, Node and its TLS library say; the first that fits counts.
const REFUSED = /ECONNREFUSED|ENOENT/;
const TLS: readonly (readonly [Hint, RegExp])[] = [
  ["server_speaks_no_tls", /wrong version number|packet length too long/],
  ["certificate_expired", /certificate has expired|certificate is not yet valid/],
  ["certificate_for_another_name", /ERR_TLS_CERT_ALTNAME_INVALID|certificate's altnames/],
  ["certificate_untrusted", /unable to (verify|get)\b.*\bcertificate|self[- ]signed certificate/],
  ["certificate_wanted", /alert (certificate required|unknown ca|bad certificate)/],
];
const CLOSED = /Failed to connect|ECONNRESET|EPIPE|Connection dropped|socket disconnected|Protocol error/;

/** What is known of the connection that failed. */
export interface Situation {
  /** The client speaks TLS. */
  tls: boolean;
  /** The server answered before, so that its address and TLS are right. */
  reached: boolean;
}

/** Returns the hint for a message of grpc-js. Undefined: there is none. */
export function hintOf(message: string, { tls, reached }: Situation): Hint | undefined {
  const found = tls ? TLS.find(([, signs]) => signs.test(message)) : undefined;
  if (found !== undefined) return found[0];
  if (REFUSED.test(message)) return "not_running";
  if (!reached && CLOSED.test(message)) return tls ? "certificate_wanted" : "server_speaks_tls";
  return undefined;
}

/** Shortens grpc-js's nested description to what went wrong. */
export function innermost(message: string): string {
  const error = /Last error: (?:Error: )?(.*?)(?: \(\d{4}-\S+Z\))?\.? Resolution note:/s.exec(message);
  return (error?.[1] ?? message).replaceAll(/\s+/g, " ").trim();
}

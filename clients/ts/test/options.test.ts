import { describe, expect, it } from "vitest";
import { InvalidRequestError } from "../src/errors.js";
import { connection, parseAddress } from "../src/options.js";

describe("parseAddress", () => {
  it.each([
    ["127.0.0.1:7777", "dns:127.0.0.1:7777", false, true],
    ["127.9.9.9:1", "dns:127.9.9.9:1", false, true],
    [":7777", "dns:127.0.0.1:7777", false, true],
    ["localhost:1", "dns:localhost:1", false, true],
    ["[::1]:1", "dns:[::1]:1", false, true],
    ["http://[::1]:1/", "dns:[::1]:1", false, true],
    ["sandgate.example:443", "dns:sandgate.example:443", false, false],
    ["127.0.0.1.example:443", "dns:127.0.0.1.example:443", false, false],
    ["https://sandgate.example:443", "dns:sandgate.example:443", true, false],
    ["tls://sandgate.example:443/", "dns:sandgate.example:443", true, false],
    ["unix:///run/sandgate.sock", "unix:///run/sandgate.sock", false, true],
  ])("%s", (address, target, tls, local) => {
    expect(parseAddress(address)).toEqual({ target, tls, local });
  });

  it.each([
    "",
    "host",
    "host:",
    "host:port",
    "host:65536",
    "ftp://host:1",
    "unix://run/x",
    "a b:1",
    "::1:7777",
  ])("refuses %j", (address) => {
    expect(() => parseAddress(address)).toThrow(InvalidRequestError);
  });
});

describe("connection", () => {
  it("takes the default, the environment, the option", () => {
    expect(connection({}, {}).target).toBe("dns:127.0.0.1:7777");
    const env = { SANDGATE_ADDRESS: "unix:///a", SANDGATE_TOKEN: "t" };
    expect(connection({}, env)).toMatchObject({
      target: "unix:///a",
      token: "t",
      reconnectTimeoutMs: 60_000,
    });
    expect(connection({ address: "unix:///b", token: "u" }, env)).toMatchObject({
      target: "unix:///b",
      token: "u",
    });
  });

  it("sends no token in the clear to another machine", () => {
    const address = "sandgate.example:7777";
    expect(() => connection({ address, token: "secret" }, {})).toThrow(/without TLS/);
    expect(() => connection({ address, token: "secret" }, {})).not.toThrow(/secret/);
    expect(connection({ address, token: "secret", insecure: true }, {}).token).toBe("secret");
    expect(connection({ address: `https://${address}`, token: "secret" }, {}).token).toBe("secret");
  });

  it("names a file that cannot be read", () => {
    expect(() => connection({ caFile: "/does/not/exist" }, {})).toThrow(/\/does\/not\/exist cannot be read/);
    expect(() => connection({ certFile: "/x" }, {})).toThrow(/both/);
  });
});

import { readFileSync } from "node:fs";
import { Server, ServerCredentials } from "@grpc/grpc-js";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { HINTS, type Hint } from "../src/hints.js";
import { Client, type ClientOptions } from "../src/index.js";
import { Certificates } from "./certificates.js";

const LOOPBACK = "subjectAltName=IP:127.0.0.1";

describe("the words of hints", () => {
  it("are those that all clients share", () => {
    expect(HINTS).toEqual(JSON.parse(readFileSync(new URL("../../hints.json", import.meta.url), "utf8")));
  });
});

describe("what is wrong with TLS", () => {
  const made = new Certificates();
  const servers: Server[] = [];
  const at: Record<string, string> = { nobody: "127.0.0.1:1", socket: "unix:///nonexistent/s.sock" };

  const serve = (name: string, credentials: ServerCredentials) =>
    new Promise<void>((resolve, reject) => {
      const server = new Server();
      servers.push(server);
      server.bindAsync("127.0.0.1:0", credentials, (error, port) => {
        at[name] = `127.0.0.1:${port}`;
        error === null ? resolve() : reject(error);
      });
    });
  const secured = (certificate: string, clientCA?: string) =>
    ServerCredentials.createSsl(
      clientCA === undefined ? null : readFileSync(made.at(clientCA)),
      [
        {
          private_key: readFileSync(made.at(`${certificate}.key`)),
          cert_chain: readFileSync(made.at(`${certificate}.pem`)),
        },
      ],
      clientCA !== undefined,
    );

  beforeAll(async () => {
    made.authority("ca");
    made.authority("stranger");
    made.signed("good", "ca", LOOPBACK);
    made.signed("expired", "ca", LOOPBACK, { days: -1 });
    made.signed("elsewhere", "ca", "subjectAltName=DNS:elsewhere.example.com");
    made.signed("client", "ca", "extendedKeyUsage=clientAuth");
    await serve("plain", ServerCredentials.createInsecure());
    await serve("good", secured("good"));
    await serve("expired", secured("expired"));
    await serve("elsewhere", secured("elsewhere"));
    await serve("mutual", secured("good", "ca.pem"));
  });
  afterAll(() => {
    for (const server of servers) server.forceShutdown();
    made.remove();
  });

  const call = async (options: ClientOptions) => {
    using client = new Client(options);
    const unary = await client.serverInfo({ timeoutMs: 10_000 }).catch((e) => e);
    const stream = await client
      .sandbox("x")
      .execute("true")
      .catch((e) => e);
    return [unary, stream];
  };

  it.each<[string, string, string, Hint]>([
    ["the server speaks TLS and the client does not", "good", "", "server_speaks_tls"],
    ["the client speaks TLS and the server does not", "plain", "ca.pem", "server_speaks_no_tls"],
    ["another authority", "good", "stranger.pem", "certificate_untrusted"],
    ["an expired certificate", "expired", "ca.pem", "certificate_expired"],
    ["a certificate for another name", "elsewhere", "ca.pem", "certificate_for_another_name"],
    ["no client certificate", "mutual", "ca.pem", "certificate_wanted"],
    ["nobody there", "nobody", "", "not_running"],
    ["no socket there", "socket", "", "not_running"],
  ])("S5-31 has a hint: %s", async (_name, server, ca, hint) => {
    const address = at[server] as string;
    const options = { address, ...(ca === "" ? {} : { caFile: made.at(ca) }) };
    for (const error of await call(options)) {
      expect(error.name).toBe("UnavailableError");
      expect(error.message).toContain(`the server at ${address} cannot be reached: `);
      expect(error.message.endsWith(`; ${HINTS[hint]}`)).toBe(true);
      expect(error.message).not.toContain("\n");
    }
  });

  it("is nothing where all fits", async () => {
    const client = { certFile: made.at("client.pem"), keyFile: made.at("client.key") };
    const name = { serverName: "elsewhere.example.com" };
    for (const options of [
      { address: at["good"] as string },
      { address: `https://${at["good"]}` },
      { address: at["mutual"] as string, ...client },
      { address: at["elsewhere"] as string, ...name },
    ]) {
      for (const error of await call({ ...options, caFile: made.at("ca.pem") })) {
        // It is reached, and knows none of the calls.
        expect(error.name).toBe("UnsupportedError");
      }
    }
  });
});

/** docs/clients/options.md has every option of this client, with its default. */

import { readdirSync, readFileSync } from "node:fs";
import ts from "typescript";
import { describe, expect, it } from "vitest";
import { DEFAULT_GRACE_MS } from "../src/command.js";
import { connection, DEFAULT_ADDRESS } from "../src/options.js";

const SOURCE = new URL("../src/", import.meta.url);

const page = readFileSync(new URL("../../../docs/clients/options.md", import.meta.url), "utf8");

/** The default of each option of the column TypeScript, by table. */
const tables = new Map<string, Map<string, string>>();
let section = "";
for (const line of page.split("\n")) {
  if (line.startsWith("## ")) section = line.slice(3);
  const cells = line.replace(/^\||\|$/g, "").split(" | ");
  if (section === "" || !line.startsWith("|") || cells.length < 5) continue;
  const table = tables.get(section) ?? new Map<string, string>();
  tables.set(section, table);
  for (const [, name = ""] of (cells[2] ?? "").matchAll(/`([^`]+)`/g)) table.set(name, cells[4] ?? "");
}

function parse(file: string): ts.SourceFile {
  return ts.createSourceFile(file, readFileSync(new URL(file, SOURCE), "utf8"), ts.ScriptTarget.Latest);
}

const files = readdirSync(SOURCE)
  .filter((file) => file.endsWith(".ts"))
  .map(parse);

const interfaces = new Map(
  files
    .flatMap((file) => [...file.statements])
    .filter(ts.isInterfaceDeclaration)
    .map((one) => [one.name.text, names(one.members)]),
);

function names(members: ts.NodeArray<ts.TypeElement>): string[] {
  return members.map((member) => (member.name as ts.Identifier).text);
}

/** The members that interfaces declare themselves. */
function members(...of: string[]): string[] {
  return of.flatMap((name) => {
    const found = interfaces.get(name);
    if (found === undefined) throw new Error(`there is no interface ${name}`);
    return found;
  });
}

/** The options that a method of Sandbox declares in its own parameters. */
function inline(method: string): string[] {
  const found = parse("sandbox.ts")
    .statements.filter(ts.isClassDeclaration)
    .flatMap((one) => [...one.members])
    .filter(ts.isMethodDeclaration)
    .find((one) => (one.name as ts.Identifier).text === method);
  if (found === undefined) throw new Error(`Sandbox has no method ${method}`);
  return found.parameters
    .flatMap(({ type }) => (type && ts.isIntersectionTypeNode(type) ? [...type.types] : []))
    .filter(ts.isTypeLiteralNode)
    .flatMap((type) => names(type.members));
}

const options: Record<string, string[]> = {
  Client: members("ClientOptions"),
  Calls: members("CallOptions"),
  Create: members("CreateOptions", "SandboxSpec"),
  Resources: members("Resources"),
  "Access policy": members("AccessPolicy"),
  "Egress rules": members("EgressRule"),
  Execute: members("ExecuteOptions"),
  Attach: members("AttachOptions"),
  "Write to standard input": inline("writeStdin"),
  "List commands": inline("processes"),
  "List sandboxes": [...members("ListOptions"), "pageToken"],
  Update: members("UpdateOptions"),
  "Clean up": members("CleanupOptions"),
  Read: members("ReadOptions"),
  Write: members("WriteOptions"),
  Edit: members("EditOptions"),
  Glob: members("GlobOptions"),
  Search: members("SearchOptions"),
  "Make a directory": inline("makeDirectory"),
  Move: inline("move"),
  Remove: inline("remove"),
  Upload: members("WriteOptions", "UploadFile"),
  Download: members("DownloadOptions"),
  Connect: members("ConnectOptions"),
  "Get a URL": members("UrlOptions"),
  Watch: members("WatchOptions"),
  "Build an image": members("BuildOptions"),
};

describe("the page of options", () => {
  it("has every table", () => {
    expect([...tables.keys()].sort()).toEqual(Object.keys(options).sort());
  });

  it.each(Object.entries(options))("has every option of %s", (title, own) => {
    expect([...(tables.get(title)?.keys() ?? [])].sort()).toEqual(own.toSorted());
  });

  it("knows every interface of options", () => {
    const known = Object.values(options).flat();
    for (const [name, own] of interfaces) {
      if (name.endsWith("Options")) expect(known).toEqual(expect.arrayContaining(own));
    }
  });

  it.each([
    ["Client", "address", DEFAULT_ADDRESS],
    ["Client", "reconnectTimeoutMs", `${connection({}, {}).reconnectTimeoutMs / 1_000} s`],
    ["Client", "keepaliveMs", `${connection({}, {}).keepaliveMs / 1_000} s`],
    ["Client", "channels", `${connection({}, {}).channels} in TypeScript`],
    ["Execute", "disconnectGraceMs", `${DEFAULT_GRACE_MS / 1_000} s`],
  ])("has the default of %s %s", (title, name, value) => {
    expect(tables.get(title)?.get(name)).toContain(value);
  });
});

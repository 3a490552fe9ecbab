import { readFileSync } from "node:fs";
import ts from "typescript";
import { describe, expect, it } from "vitest";
import { Client } from "../src/client.js";
import { Sandbox } from "../src/sandbox.js";

interface Surface {
  names: string[];
  ts?: {
    renamed?: Record<string, string>;
    /** The reason of each difference. */
    absent?: Record<string, string>;
    only?: Record<string, string>;
  };
}

const surfaces: Record<string, Surface> = JSON.parse(
  readFileSync(new URL("../../surface.json", import.meta.url), "utf8"),
);

/** The methods of a class in their order, without properties and symbols. */
function methods(of: { prototype: object }): string[] {
  return Object.entries(Object.getOwnPropertyDescriptors(of.prototype))
    .filter(([name, { value }]) => typeof value === "function" && name !== "constructor")
    .map(([name]) => name);
}

/** The members that an interface declares itself. */
function members(file: string, name: string): string[] {
  const text = readFileSync(new URL(`../src/${file}`, import.meta.url), "utf8");
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest);
  const found = source.statements.find(
    (one): one is ts.InterfaceDeclaration => ts.isInterfaceDeclaration(one) && one.name.text === name,
  );
  if (found === undefined) throw new Error(`${file} has no interface ${name}`);
  return found.members.map((member) => (member.name as ts.Identifier).text);
}

/** The name in the words of all clients; durations have no unit there. */
function shared(name: string): string {
  return name.replace(/Ms$/, "").replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

const actual: Record<string, string[]> = {
  "client methods": methods(Client),
  "sandbox methods": methods(Sandbox),
  "client options": members("options.ts", "ClientOptions"),
  "create options": [...members("client.ts", "CreateOptions"), ...members("values.ts", "SandboxSpec")],
  "execute options": members("command.ts", "ExecuteOptions"),
  "search options": members("files.ts", "SearchOptions"),
  "glob options": members("files.ts", "GlobOptions"),
  "build options": members("build.ts", "BuildOptions"),
};

describe("the surface of all clients", () => {
  it("has every list of the file", () => {
    expect(Object.keys(actual).sort()).toEqual(Object.keys(surfaces).sort());
  });

  it.each(Object.entries(surfaces))("%s", (title, { names, ts: own = {} }) => {
    const { renamed = {}, absent = {}, only = {} } = own;
    const wanted = names.filter((name) => !(name in absent)).map((name) => renamed[name] ?? name);
    const all = (actual[title] ?? []).map(shared);
    const common = all.filter((name) => !(name in only));
    expect(all.filter((name) => name in only).sort()).toEqual(Object.keys(only).sort());
    expect(common.toSorted()).toEqual(wanted.toSorted());
    if (title.endsWith("methods")) expect(common).toEqual(wanted);
  });
});

/** An OCI image that has nothing but busybox, as a tar archive. */

import { execFileSync, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  copyFileSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Why there can be no such image here. Empty: there can. */
export function whyNoBusybox(): string {
  const path = spawnSync("sh", ["-c", "command -v busybox"], { encoding: "utf8" }).stdout.trim();
  return path === "" ? "needs a static busybox: none is installed" : "";
}

/** Writes the image's archive and returns its path; the caller removes its directory. */
export function busyboxArchive(): { path: string; remove: () => void } {
  const busybox = execFileSync("sh", ["-c", "command -v busybox"], { encoding: "utf8" }).trim();
  const directory = mkdtempSync(join(tmpdir(), "sandgate-busybox-"));
  const root = join(directory, "root");
  mkdirSync(join(root, "bin"), { recursive: true });
  mkdirSync(join(root, "etc"));
  copyFileSync(busybox, join(root, "bin/busybox"));
  for (const applet of execFileSync(busybox, ["--list"], { encoding: "utf8" }).trim().split("\n")) {
    if (applet !== "busybox") linkSync(join(root, "bin/busybox"), join(root, "bin", applet));
  }
  writeFileSync(join(root, "etc/passwd"), "");
  execFileSync("tar", ["-C", root, "--owner=0", "--group=0", "-cf", join(directory, "layer.tar"), "."]);

  const layout = join(directory, "layout");
  mkdirSync(join(layout, "blobs/sha256"), { recursive: true });
  const blob = (content: Buffer | object, mediaType: string) => {
    const bytes = Buffer.isBuffer(content) ? content : Buffer.from(JSON.stringify(content));
    const hash = createHash("sha256").update(bytes).digest("hex");
    writeFileSync(join(layout, "blobs/sha256", hash), bytes);
    return { mediaType, digest: `sha256:${hash}`, size: bytes.length };
  };
  const oci = "application/vnd.oci.image";
  const layer = blob(readFileSync(join(directory, "layer.tar")), `${oci}.layer.v1.tar`);
  const architecture = process.arch === "x64" ? "amd64" : process.arch;
  const config = blob(
    {
      architecture,
      os: "linux",
      config: { Env: ["PATH=/bin"] },
      rootfs: { type: "layers", diff_ids: [layer.digest] },
    },
    `${oci}.config.v1+json`,
  );
  const manifest = blob(
    { schemaVersion: 2, mediaType: `${oci}.manifest.v1+json`, config, layers: [layer] },
    `${oci}.manifest.v1+json`,
  );
  const annotations = { "org.opencontainers.image.ref.name": "latest" };
  writeFileSync(
    join(layout, "index.json"),
    JSON.stringify({ schemaVersion: 2, manifests: [{ ...manifest, annotations }] }),
  );
  writeFileSync(join(layout, "oci-layout"), JSON.stringify({ imageLayoutVersion: "1.0.0" }));
  const path = join(directory, "image.tar");
  execFileSync("tar", ["-C", layout, "-cf", path, "."]);
  if (statSync(path).size === 0) throw new Error("the archive is empty");
  return { path, remove: () => rmSync(directory, { recursive: true, force: true }) };
}

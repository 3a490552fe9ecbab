/** Authorities and certificates for tests, made with openssl. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];

/** A directory in which each certificate is a NAME.pem with its NAME.key. */
export class Certificates {
  readonly directory = mkdtempSync(join(tmpdir(), "sandgate-tls-"));

  /** Returns the path of a file. */
  at(name: string): string {
    return join(this.directory, name);
  }

  /** Makes an authority. */
  authority(name: string): void {
    const files = ["-keyout", `${name}.key`, "-out", `${name}.pem`];
    this.#openssl("req", "-x509", ...KEY, ...files, "-days", "2", "-subj", `/CN=${name}`);
  }

  /** Makes a certificate of an authority, with an extension such as `subjectAltName=…`. */
  signed(name: string, by: string, extension: string, { subject = `/CN=${name}`, days = 2 } = {}): void {
    writeFileSync(this.at(`${name}.ext`), extension);
    this.#openssl("req", ...KEY, "-keyout", `${name}.key`, "-out", `${name}.csr`, "-subj", subject);
    const signing = ["-CA", `${by}.pem`, "-CAkey", `${by}.key`, "-CAcreateserial", "-days", String(days)];
    const files = ["-in", `${name}.csr`, "-extfile", `${name}.ext`, "-out", `${name}.pem`];
    this.#openssl("x509", "-req", ...files, ...signing);
  }

  /** Removes it all. */
  remove(): void {
    rmSync(this.directory, { recursive: true, force: true });
  }

  #openssl(...args: string[]): void {
    execFileSync("openssl", args, { cwd: this.directory, stdio: "pipe" });
  }
}

/**
 * Which files deepagents treats as binary. It decides by extension alone, and
 * backends must agree with it.
 */

const BY_TYPE: Readonly<Record<string, string>> = {
  "image/png": "png",
  "image/jpeg": "jpg jpeg",
  "image/gif": "gif",
  "image/webp": "webp",
  "image/heic": "heic",
  "image/heif": "heif",
  "image/svg+xml": "svg",
  "audio/mpeg": "mp3",
  "audio/wav": "wav",
  "audio/aiff": "aiff",
  "audio/aac": "aac",
  "audio/ogg": "ogg",
  "audio/flac": "flac",
  "video/mp4": "mp4",
  "video/webm": "webm",
  "video/mpeg": "mpeg mpg",
  "video/quicktime": "mov",
  "video/x-msvideo": "avi",
  "video/x-flv": "flv",
  "video/x-ms-wmv": "wmv",
  "video/3gpp": "3gpp",
  "application/pdf": "pdf",
  "application/vnd.ms-powerpoint": "ppt",
  "application/vnd.openxmlformats-officedocument.presentationml.presentation": "pptx",
  "text/markdown": "md markdown",
  "text/html": "html htm",
  "text/css": "css",
  "text/csv": "csv",
  "text/xml": "xml",
  "application/json": "json",
  "application/javascript": "js mjs cjs",
};

const BY_EXTENSION = new Map(
  Object.entries(BY_TYPE).flatMap(([type, extensions]) =>
    extensions.split(" ").map((extension) => [extension, type] as const),
  ),
);

const TEXT_TYPES = new Set(["application/json", "application/javascript", "image/svg+xml"]);

/** The type of a file by its name; "text/plain" for what is not known. */
export function mimeType(path: string): string {
  const name = path.slice(path.lastIndexOf("/") + 1);
  const dot = name.lastIndexOf(".");
  return (dot > 0 && BY_EXTENSION.get(name.slice(dot + 1).toLowerCase())) || "text/plain";
}

/** True when a file of this type is read as text. */
export function isText(type: string): boolean {
  return type.startsWith("text/") || TEXT_TYPES.has(type);
}

"""The part of S3 that an export and its readers use, in memory, in this process."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class ObjectStore:
    """`objects` maps bucket/key to contents."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        store = self

        class Handler(_Handler):
            pass

        Handler.store = store
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def settings(self) -> dict[str, str]:
        return {
            "endpoint_override": self.endpoint,
            "scheme": "http",
            "access_key": "key",
            "secret_key": "secret",
            "region": "here",
        }

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:
        key, query = self._place()
        if "list-type" in query:
            self._list(key.strip("/"), query)
            return
        content = self.store.objects.get(key)
        if content is None:
            self._error(404, "NoSuchKey")
            return
        asked = _RANGE.match(self.headers.get("Range", ""))
        if asked:
            end = int(asked[2]) + 1 if asked[2] else len(content)
            self._answer(206, content[int(asked[1]) : end])
        else:
            self._answer(200, content)

    def do_HEAD(self) -> None:
        key, _ = self._place()
        is_bucket = "/" not in key
        content = b"" if is_bucket else self.store.objects.get(key)
        if content is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Last-Modified", "Sun, 22 Nov 2026 12:00:00 GMT")
        self.end_headers()

    def do_PUT(self) -> None:
        key, query = self._place()
        body = self._body()
        if "uploadId" in query:
            self.store.uploads[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.store.objects[key] = body
        self._answer(200, b"", {"ETag": '"x"'})

    def do_POST(self) -> None:
        key, query = self._place()
        body = self._body()
        if "uploads" in query:
            upload = f"upload-{len(self.store.uploads)}"
            self.store.uploads[upload] = {}
            self._xml(
                "InitiateMultipartUploadResult", f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
            )
        elif "uploadId" in query:
            parts = self.store.uploads.pop(query["uploadId"][0])
            self.store.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._xml("CompleteMultipartUploadResult", "<ETag>x</ETag>")
        else:  # DeleteObjects
            for found in re.findall(r"<Key>([^<]*)</Key>", body.decode()):
                self.store.objects.pop(f"{key.strip('/')}/{found}", None)
            self._xml("DeleteResult", "")

    def do_DELETE(self) -> None:
        self.store.objects.pop(self._place()[0], None)
        self._answer(204, b"")

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        rows, folders = [], set()
        for key, content in sorted(self.store.objects.items()):
            name = key.removeprefix(f"{bucket}/")
            if not key.startswith(f"{bucket}/") or not name.startswith(prefix):
                continue
            rest = name[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            rows.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(content)}</Size>"
                "<LastModified>2026-11-22T12:00:00.000Z</LastModified></Contents>"
            )
        rows += [
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)
        ]
        self._xml(
            "ListBucketResult",
            f"<Name>{bucket}</Name><KeyCount>{len(rows)}</KeyCount><IsTruncated>false</IsTruncated>"
            + "".join(rows),
        )

    def _place(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b"".join(self._http_chunks())
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        content, at = b"", 0
        while True:
            line_end = data.index(b"\r\n", at)
            size = int(data[at:line_end].split(b";")[0], 16)
            if not size:
                return content
            content += data[line_end + 2 : line_end + 2 + size]
            at = line_end + 2 + size + 2

    def _http_chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass

    def _xml(self, name: str, inner: str) -> None:
        self._answer(200, f'<?xml version="1.0" encoding="UTF-8"?><{name}>{inner}</{name}>'.encode())

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

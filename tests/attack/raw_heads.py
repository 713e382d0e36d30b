"""Hostile request lines, headers, framing, chunks and pipelines: bytes, and what they may get."""

from __future__ import annotations

from collections.abc import Collection

from tests.attack.raw_http import CLOSED, GOOD_BODY, SECRET, Raw
from tests.gateway.test_http import JAVA

OK, BAD, NOT_FOUND = {200}, {400}, {404}
# The server's parser takes it; what matters is that it is one request.
LENIENT = {200, 400, 505}
NO_METHOD = {404, 405}
UNKNOWN_METHOD = {400, 405, 501}
TOO_LARGE = {400, 414, 431, CLOSED}
BODY = GOOD_BODY
SIZE = b"content-length: %d" % len(BODY)
TYPE = b"content-type: application/json"
CHUNKED = b"transfer-encoding: chunked"
HIDDEN = b"GET /health/live HTTP/1.1\r\nhost: a\r\nx-request-id: smuggled\r\n\r\n"
_LONG = b"9" * 5000


def request(
    line: bytes = b"POST /serve/ours HTTP/1.1",
    *heads: bytes,
    body: bytes = BODY,
    framing: bytes | None = SIZE,
    host: bytes = b"host: a",
    name: bytes = b"case",
) -> bytes:
    """A good request but for what is given; `framing` None leaves the body's length out."""
    own = (b"x-request-id: " + name, TYPE, *heads, *(() if framing is None else (framing,)))
    return b"\r\n".join((line, *((host,) if host else ()), *own, b"", b"")) + body


def get(path: bytes, method: bytes = b"GET") -> bytes:
    return request(method + b" " + path + b" HTTP/1.1", body=b"", framing=b"content-length: 0")


def head(name: str, line: bytes, allowed: Collection[int]) -> Raw:
    return Raw(f"header: {name}", request(b"POST /serve/ours HTTP/1.1", line), allowed)


def framed(
    name: str, framing: bytes, allowed: Collection[int], body: bytes = BODY, followed: bool = True
) -> Raw:
    raw = request(framing=framing, body=body)
    return Raw(f"framing: {name}", raw, allowed, followed=followed)


def chunked(name: str, body: bytes, allowed: Collection[int], followed: bool = True) -> Raw:
    raw = request(framing=CHUNKED, body=body)
    return Raw(f"chunks: {name}", raw, allowed, followed=followed)


def lines() -> list[Raw]:
    forms: dict[str, tuple[bytes, Collection[int]]] = {
        "HTTP/1.0": (b"POST /serve/ours HTTP/1.0", OK),
        "HTTP/1.2": (b"POST /serve/ours HTTP/1.2", BAD),
        "HTTP/2.0": (b"POST /serve/ours HTTP/2.0", LENIENT),
        "HTTP/0.9": (b"POST /serve/ours HTTP/0.9", LENIENT),
        "no version": (b"POST /serve/ours", LENIENT),
        "a version of many digits": (b"POST /serve/ours HTTP/1.00001", BAD),
        "words behind the version": (b"POST /serve/ours HTTP/1.1 " + SECRET, BAD),
        "another protocol": (b"POST /serve/ours FTP/1.1", BAD),
        "two spaces": (b"POST  /serve/ours HTTP/1.1", LENIENT),
        "tabs": (b"POST\t/serve/ours\tHTTP/1.1", BAD),
        "a space before it": (b" POST /serve/ours HTTP/1.1", BAD),
        "empty lines before it": (b"\r\n\r\nPOST /serve/ours HTTP/1.1", OK),
        "bare line feeds": (b"POST /serve/ours HTTP/1.1\nx-other: a", LENIENT),
        "a bare carriage return": (b"POST /serve/ours HTTP/1.1\rx-other: a", BAD),
        "a method in small letters": (b"post /serve/ours HTTP/1.1", UNKNOWN_METHOD),
        "a method of nobody": (b"BREW /serve/ours HTTP/1.1", UNKNOWN_METHOD),
        "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM", BAD),
        "the whole address": (b"POST http://a/serve/ours HTTP/1.1", {200, 404}),
        "another host's address": (b"POST http://elsewhere/serve/ours HTTP/1.1", {200, 404}),
        "no address": (b"POST elsewhere:80 HTTP/1.1", {400, 404}),
    }
    found = [Raw(f"line: {name}", request(line), ok) for name, (line, ok) in forms.items()]
    methods = (b"GET", b"HEAD", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE")
    found += [
        Raw(f"line: {method.decode()}", request(method + b" /serve/ours HTTP/1.1"), NO_METHOD)
        for method in methods
    ]
    return [
        *found,
        Raw("line: CONNECT", get(b"a:80", b"CONNECT"), {400, 404, 405}),
        Raw("line: OPTIONS *", get(b"*", b"OPTIONS"), {400, 404, 405}),
        Raw("line: GET with a body that is a request",
            request(b"GET /serve/ours HTTP/1.1", body=HIDDEN,
                    framing=b"content-length: %d" % len(HIDDEN)), NO_METHOD),
    ]  # fmt: skip


def paths() -> list[Raw]:
    forms: dict[str, tuple[bytes, Collection[int]]] = {
        "dots": (b"/serve/../../etc/passwd", NOT_FOUND),
        "dots, encoded": (b"/serve/%2e%2e%2f%2e%2e%2fetc/passwd", NOT_FOUND),
        "double slashes": (b"//serve//ours", NOT_FOUND),
        "backslashes": (b"/serve\\ours", NOT_FOUND),
        "a NUL": (b"/serve/ours\0", {400, 404}),
        "a NUL, encoded": (b"/serve/ours%00", NOT_FOUND),
        "no UTF-8": (b"/serve/\xff\xfe", {400, 404}),
        "no UTF-8, encoded": (b"/serve/%ff%fe", NOT_FOUND),
        "a line's end, encoded": (b"/serve/ours%0d%0ax-header:%20a", NOT_FOUND),
        "a cut escape": (b"/serve/ours%", NOT_FOUND),
        "an unknown version": (b"/serve/ours/7", NOT_FOUND),
        "a version of 5,000 digits": (b"/serve/ours/" + _LONG, NOT_FOUND),
        "a version below zero": (b"/serve/ours/-1", NOT_FOUND),
        "a name of 60,000 letters": (b"/serve/" + SECRET * 10_000, NOT_FOUND),
        "100,000 letters": (b"/serve/" + b"a" * 100_000, TOO_LARGE),
        "a query of 60,000 letters": (b"/serve/nothing?" + b"a=b&" * 15_000, NOT_FOUND),
        "a template": (b"/serve/{{7*7}}", {400, 404}),
        "of no route": (b"/" + SECRET, NOT_FOUND),
    }
    return [
        Raw(f"path: {name}", request(b"POST " + path + b" HTTP/1.1"), ok)
        for name, (path, ok) in forms.items()
    ] + [
        Raw("path: POST to health", request(b"POST /health/live HTTP/1.1"), {200, 405}, good=False),
        Raw("path: unknown below health", get(b"/health/" + SECRET), NOT_FOUND),
    ]


def heads() -> list[Raw]:
    two = b"content-type: text/plain\r\n"
    return [
        head("no colon", b"x-header", BAD),
        head("no name", b": a", BAD),
        head("a space before the colon", b"x-header : a", BAD),
        head("folded", b"x-header: a\r\n b", {200, 400}),
        head("a NUL in it", b"x-header: a\0b", BAD),
        head("a carriage return in it", b"x-header: a\rb", BAD),
        head("a NUL in its name", b"x-\0: a", BAD),
        head("no ASCII", b"x-header: \xff\xfe", OK),
        head("no ASCII in its name", b"x-\xff: a", BAD),
        head("200 of them", b"\r\n".join(b"x-%d: a" % one for one in range(200)), {200, 431}),
        head("8,000 of them", b"\r\n".join(b"x-%d: a" % one for one in range(8000)),
             {200, *TOO_LARGE}),
        head("60,000 letters", b"x-header: " + b"a" * 60_000, OK),
        head("100,000 letters", b"x-header: " + b"a" * 100_000, {200, *TOO_LARGE}),
        head("a second host", b"host: b", {200, 400}),
        head("a traceparent of nonsense", b"traceparent: 00-" + SECRET, OK),
        head("an accept of nonsense", b"accept: \x80/*;q=1e999", OK),
        head("a range of 5,000 digits", b"range: bytes=" + _LONG + b"-", OK),
        head("a forwarded address of nonsense", b"x-forwarded-for: " + _LONG, OK),
        head("content-length named in connection", b"connection: content-length", OK),
        head("an id of 200 letters", b"x-request-id: " + b"a" * 200, OK),
        head("an id of no ASCII", b"x-request-id: \xff", OK),
        Raw("header: two content types", request(b"POST /serve/ours HTTP/1.1", two[:-2]),
            {200, 400}, good=False),
        Raw("header: no host", request(host=b""), {200, 400}),
        Raw("header: no host, HTTP/1.0", request(b"POST /serve/ours HTTP/1.0", host=b""), OK),
        head("expect: 100-continue", b"expect: 100-continue", OK),
        head("an expectation of nonsense", b"expect: " + SECRET, {200, 417}),
        Raw("header: a websocket is asked for",
            b"GET /serve/ours HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n",
            {400, 403, 404, 405}),
        *upgrades(),
    ]  # fmt: skip


def upgrades() -> list[Raw]:
    return [
        head("upgrade to h2c, as Java sends it", b"connection: Upgrade, HTTP2-Settings\r\n"
             b"http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nupgrade: h2c", OK),
        head("upgrade to nonsense", b"connection: upgrade\r\nupgrade: " + SECRET, OK),
        Raw("header: upgrade with chunks",
            request(b"POST /serve/ours HTTP/1.1", b"connection: upgrade", b"upgrade: h2c",
                    framing=CHUNKED, body=_in_chunks()), OK),
    ]  # fmt: skip


def framings() -> list[Raw]:
    both = SIZE + b"\r\n" + CHUNKED
    hidden = b"0\r\n\r\n" + HIDDEN
    return [
        framed("length and chunks", both, BAD, hidden),
        framed("chunks and length", CHUNKED + b"\r\n" + SIZE, BAD, hidden),
        framed("two lengths", SIZE + b"\r\ncontent-length: 5", BAD),
        framed("one length twice", SIZE + b"\r\n" + SIZE, {200, 400}),
        framed("a list of lengths", b"content-length: %d, %d" % (len(BODY), len(BODY)), BAD),
        # The body is the next request then, and none.
        Raw("framing: no length", request(framing=b"x-length: 5"), BAD, requests=2),
        framed("an empty length", b"content-length:", BAD),
        *(
            framed(f"length {wrong.decode()}", b"content-length: " + wrong, BAD)
            for wrong in (b"+5", b"-1", b"0x10", b"1e1", b"1_0", b"5.0", b"18446744073709551616")
        ),
        framed("a length of 5,000 digits", b"content-length: " + _LONG, BAD),
        framed("a length with zeros before", b"content-length: 0000%d" % len(BODY), OK),
        framed("a length of 99,999,999,999", b"content-length: 99999999999", {413}, b"", False),
        framed("a length of one more", b"content-length: %d" % (len(BODY) + 1), {400, CLOSED},
               followed=False),
        Raw("framing: a length of one less", request(framing=b"content-length: %d" %
            (len(BODY) - 1)), BAD, requests=2),
        *(
            framed(name, b"transfer-encoding: " + coding, BAD, hidden)
            for name, coding in {
                "a coding of nonsense": b"xchunked", "chunked, then identity": b"chunked, identity",
                "a vertical tab": b"\x0bchunked", "chunked in quotes": b'"chunked"',
                "chunked before gzip": b"chunked, gzip",
            }.items()
        ),
        framed("chunked twice", CHUNKED + b"\r\n" + CHUNKED, {200, 400}, _in_chunks()),
        framed("identity, chunked", b"transfer-encoding: identity, chunked", {200, 400},
               _in_chunks()),
        framed("CHUNKED", b"transfer-encoding: CHUNKED", OK, _in_chunks()),
        framed("a space before its colon", b"transfer-encoding : chunked", BAD, hidden),
        framed("folded", b"transfer-encoding:\r\n chunked", {200, 400}, _in_chunks()),
        Raw("framing: chunks in HTTP/1.0", request(b"POST /serve/ours HTTP/1.0", framing=CHUNKED,
            body=_in_chunks()), {200, 400}),
    ]  # fmt: skip


def _in_chunks(size: int = 10, form: bytes = b"%x") -> bytes:
    pieces = [BODY[at : at + size] for at in range(0, len(BODY), size)]
    return b"".join(form % len(one) + b"\r\n" + one + b"\r\n" for one in pieces) + b"0\r\n\r\n"


def chunks() -> list[Raw]:
    whole = b"%x\r\n" % len(BODY) + BODY + b"\r\n"
    large = b"a" * 100_000
    return [
        chunked("a byte each", _in_chunks(1), OK),
        chunked("sizes in capitals", _in_chunks(10, b"%X"), OK),
        chunked("sizes with zeros", _in_chunks(10, b"0000%x"), OK),
        chunked("an extension", _in_chunks(10, b'%x;name="a;b"'), OK),
        chunked("an extension with a line's end", _in_chunks(10, b"%x;a\n"), BAD),
        chunked("an extension of 100,000 letters", b"5;" + large + b"\r\naaaaa\r\n0\r\n\r\n",
                {400, CLOSED}),
        chunked("a size below zero", b"-5\r\naaaaa\r\n0\r\n\r\n", BAD),
        chunked("a size with 0x", _in_chunks(10, b"0x%x"), BAD),
        chunked("a size of no digits", b"zz\r\naaaaa\r\n0\r\n\r\n", BAD),
        chunked("no size", b"\r\naaaaa\r\n0\r\n\r\n", BAD),
        chunked("a size of 2^64", b"10000000000000000\r\n" + BODY + b"\r\n0\r\n\r\n", BAD),
        chunked("a size and a space", _in_chunks(10, b"%x "), {200, 400}),
        chunked("bare line feeds", _in_chunks().replace(b"\r\n", b"\n"), BAD),
        chunked("more than the size", b"5\r\n" + BODY + b"\r\n0\r\n\r\n", BAD),
        chunked("no last one", whole, {400, CLOSED}, followed=False),
        chunked("trailers", whole + b"0\r\nx-trailer: a\r\n\r\n", OK),
        chunked("a length in the trailers", whole + b"0\r\ncontent-length: 5\r\n\r\n", {200, 400}),
        chunked("trailers of 100,000 letters", whole + b"0\r\nx-trailer: " + large + b"\r\n\r\n",
                {200, 400, CLOSED}),
        chunked("a request behind the last one", whole + b"0\r\n" + HIDDEN, {200, 400}),
        chunked("nothing", b"0\r\n\r\n", BAD),
    ]  # fmt: skip


def pipelines() -> list[Raw]:
    good = [request(name=b"case-%d" % one) for one in range(50)]
    bad = request(name=b"bad", body=b"{" + SECRET)
    missing = request(b"POST /serve/missing HTTP/1.1", name=b"missing")
    large = request(name=b"large", body=BODY + b" " * 1_500_000,
                    framing=b"content-length: %d" % (len(BODY) + 1_500_000))  # fmt: skip
    bad = bad.replace(SIZE, b"content-length: %d" % (len(SECRET) + 1))
    java = JAVA.replace(b"/x", b"/serve/ours").replace(b"\r\n\r\n", b"\r\n" + TYPE + b"\r\n\r\n")
    return [
        Raw("pipeline: two", good[0] + good[1], OK, requests=2),
        Raw("pipeline: fifty", b"".join(good), OK, requests=50),
        Raw("pipeline: a bad one first", bad + good[0], {200, 400}, requests=2),
        Raw("pipeline: a bad one last", good[0] + bad, {200, 400}, requests=2),
        Raw("pipeline: an unknown endpoint between", good[0] + missing + good[1], {200, 404},
            requests=3),
        Raw("pipeline: a large one first", large + good[0], OK, requests=2),
        Raw("pipeline: another method between", good[0] + get(b"/serve/ours", b"PUT").replace(
            b"case", b"put") + good[1], {200, 404, 405}, requests=3),
        Raw("pipeline: Java's upgrade, three times", (java % len(BODY) + BODY) * 3, OK, requests=3),
        Raw("pipeline: no HTTP behind a good one", good[0] + b"\0\xff" * 20 + b"\r\n\r\n",
            {200, 400}, requests=2),
    ]  # fmt: skip


def head_cases() -> list[Raw]:
    return [*lines(), *paths(), *heads(), *framings(), *chunks(), *pipelines()]

"""Uploads in parts that nobody has completed, in a bucket of s3: lists and aborts them.

Processes that are killed while they send a large file leave them. They take space, and no listing of objects shows
them. obstore has no request for them, so this module makes and signs its own.

Source:
    Signature Version 4 with an empty body, "Authenticating Requests: Using the Authorization Header" of Amazon S3.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http
import http.client
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.objects import failures

_TIMEOUT_S = 120
_MOST_BYTES = 16 << 20  # of an answer
_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class _NotThereError(CheckpointError):
    """The server does not have what a request names."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirection an error: the credentials of a request are for its server only."""

    def redirect_request(self, *_: object) -> None:
        """Follow none."""


_OPENER = urllib.request.build_opener(_NoRedirect)


@dataclass(frozen=True)
class Upload:
    """An upload that has begun.

    Attributes:
        key: Name that the object will have.
        number: The server's name of the upload.
        begun: When it began.
    """

    key: str
    number: str
    begun: datetime.datetime


def sweep_uploads(location: ObjectLocation, older_than_s: float, is_dry_run: bool = False) -> list[Upload]:
    """Abort the uploads in parts below a location of s3; return them.

    Args:
        location: The location.
        older_than_s: Younger uploads stay: their process may be alive [s].
        is_dry_run: Whether only to return them.

    Raises:
        CheckpointError: If the keys are not in the environment or the files of the AWS tools, or the server refuses.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    old = [one for one in _uploads(location) if (now - one.begun).total_seconds() >= older_than_s]
    if is_dry_run:
        return old
    return [upload for upload in old if _abort(location, upload)]


def _abort(location: ObjectLocation, upload: Upload) -> bool:
    """Abort an upload, and return whether it was still there."""
    try:
        _request("DELETE", location, upload.key, {"uploadId": upload.number})
    except _NotThereError:  # its writer, or another sweep, was faster
        return False
    return True


def _uploads(location: ObjectLocation) -> Iterator[Upload]:
    """Yield the uploads of objects at or below a location."""
    query = {"uploads": "", "prefix": location.key}
    while True:
        answer = _request("GET", location, "", query)
        try:
            root = ElementTree.fromstring(answer)
            for node in root.iterfind("{*}Upload"):
                key, number, begun = (node.findtext(f"{{*}}{name}", "") for name in ("Key", "UploadId", "Initiated"))
                if key == location.key or not location.key or key.startswith(f"{location.key}/"):
                    yield Upload(key, number, _time(begun))
        except (ElementTree.ParseError, ValueError) as exc:
            raise CheckpointError(f"{location}: the server's list of uploads cannot be read: {exc}") from exc
        markers = {
            "key-marker": root.findtext("{*}NextKeyMarker", ""),
            "upload-id-marker": root.findtext("{*}NextUploadIdMarker", ""),
        }
        if root.findtext("{*}IsTruncated", "") != "true" or markers.items() <= query.items():
            return
        query |= markers


def _time(text: str) -> datetime.datetime:
    """Return a time of ISO 8601, in UTC unless it names another zone."""
    time = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)


def _request(method: str, location: ObjectLocation, key: str, query: Mapping[str, str]) -> bytes:
    """Return the answer to a request about an object of a bucket, or about the bucket itself.

    Raises:
        CheckpointError: If there are no keys, or the request fails.
    """
    account = env.s3_account()
    if not account.key_id or not account.secret:
        raise CheckpointError(
            f"{location}: uploads in parts that were not completed are neither listed nor removed. Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a rule of the bucket (AbortIncompleteMultipartUpload)."
        )
    # The bucket in the path works with every server, and with names that contain dots.
    path = quote("/".join(filter(None, (location.container, key))), safe="/-_.~")
    endpoint = account.endpoint.rstrip("/")
    words = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
    now = datetime.datetime.now(datetime.timezone.utc)
    headers = signed_headers(account, method, f"{endpoint}/{path}?{words}", now)
    request = urllib.request.Request(f"{endpoint}/{path}?{words}", method=method, headers=headers)
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as exc:
        error = _NotThereError if exc.code == http.HTTPStatus.NOT_FOUND else CheckpointError
        with exc:
            text = f"status code: {exc.code}: {exc.read(_MOST_BYTES).decode(errors='replace')}"
    except (OSError, http.client.HTTPException, ValueError) as exc:
        error, text = CheckpointError, f"error sending request: {exc}"
    hint = failures.advice(CheckpointError(text), key)
    raise error(
        f"{location}: uploads in parts that were not completed cannot be swept: {failures.without_credentials(text)} "
        f"{hint}"
    ) from None


def signed_headers(account: env.S3Account, method: str, url: str, now: datetime.datetime) -> dict[str, str]:
    """Return the headers of a request without a body.

    Args:
        account: The keys and the region.
        method: The method of HTTP.
        url: The URL; the words of its query are sorted, and it is quoted as the signature needs it.
        now: The time, in UTC.
    """
    parts, moment = urlsplit(url), now.strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": parts.netloc, "x-amz-content-sha256": _EMPTY_SHA256, "x-amz-date": moment}
    if account.token:
        headers["x-amz-security-token"] = account.token
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    wanted = "\n".join((method, parts.path or "/", parts.query, lines, names, _EMPTY_SHA256))
    scope = f"{moment[:8]}/{account.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(wanted.encode()).hexdigest()}"
    secret = f"AWS4{account.secret}".encode()
    for word in scope.split("/"):
        secret = hmac.digest(secret, word.encode(), "sha256")
    signature = hmac.digest(secret, text.encode(), "sha256").hex()
    credential = f"AWS4-HMAC-SHA256 Credential={account.key_id}/{scope}"
    return {**headers, "Authorization": f"{credential},SignedHeaders={names},Signature={signature}"}

"""Errors of obstore: what to do about one, whether to repeat the request, and the text without credentials."""

from __future__ import annotations

import re

TRY_AGAIN = "Try again; what was written before is untouched."
_NO_ANSWER = "Nothing answers there: check the endpoint (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT) and the network."
_SET_KEYS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (gs and az: the variables of their own clients)."
)
_MAX_TEXT = 400
_MAX_MASKED = 20_000
# Names whose values are secret, as ends of longer ones: x-amz-security-token, AWSAccessKeyId, client_secret.
_SECRET_NAME = (
    r"(?:X-(?:Amz|Goog)-[\w-]+|[\w-]*(?:signature|sig|token|credentials?|authorization|secret|password|api-?key"
    r"|(?:access|account|private|secret|shared)[_-]?key(?:[_-]?id)?|assertion))"
)
_SECRETS = (
    # <AWSAccessKeyId>, <StringToSign>, <Token-0>: to the end of the element.
    (
        r"<([\w-]*(?:key-?id|secret|token|signature|credential|StringToSign|CanonicalRequest|AuthenticationErrorDetail)"
        r"[\w-]*)>[^<]*",
        r"<\1>...",
    ),
    # "name": "value", also with escaped quotes.
    (rf"(\\*[\"']{_SECRET_NAME}\\*[\"']\s*[:=]\s*)\\*([\"']).*?(?:(?<!\\)\\*\2|$)", r"\1\2...\2"),
    # A header: its value has spaces.
    (r"((?:proxy-)?authorization\s*[:=]\s*)(?![\"'\\])[^\n]+", r"\1..."),
    (rf"({_SECRET_NAME}\s*[:=]\s*)(?![\"'\\]|\.\.\.)[^&\s\"',<>]+", r"\1..."),
    # Whatever is around them: bearer tokens, and the identifiers of AWS and Google.
    (r"(\bbearer\s+)(?!\.\.\.)[^\s\"',<>]+", r"\1..."),
    (r"\b(?:AKIA|ASIA|ya29\.)[\w.-]+", "..."),
)
# Where a user's names are in an error: advice must not depend on them.
_PLACES = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://\S+|<(Key|Resource|BucketName|Prefix)>[^<]*")
_STATUS_403 = re.compile(r"\bstatus(?: code)?:? 403\b")
_STATUS_501 = re.compile(r"\bstatus(?: code)?:? 501\b")
_EXPIRED = re.compile(r"<Code>(?:ExpiredToken\w*|InvalidToken|TokenRefreshRequired)<")
_REGION = re.compile(
    r"<Code>(?:PermanentRedirect|AuthorizationHeaderMalformed|\w*Location\w*)<|<Region>|configured region"
)


def without_credentials(text: str) -> str:
    """Return the first lines of an error of obstore, without signatures and tokens.

    >>> without_credentials("GET http://s/b?X-Amz-Signature=4f2a&x=1 failed")
    'GET http://s/b?X-Amz-Signature=...&x=1 failed'
    """
    text = text.split("Debug source:")[0][:_MAX_MASKED]
    for pattern, replacement in _SECRETS:
        text = re.sub(f"(?i){pattern}", replacement, text)
    return " ".join(text.split())[:_MAX_TEXT]


def advice(exc: Exception, key: str | None) -> str:
    """Return what to do about an error of obstore.

    Args:
        exc: The error.
        key: What was requested; None: obstore did not accept the settings.
    """
    kind = type(exc).__name__
    text = _PLACES.sub("", str(exc).split("Debug source:")[0])
    if key is not None:
        text = text.replace(f"path {key}", "").replace(f"location {key}", "")
    if "<Code>RequestTimeTooSkewed<" in text:
        return "The clock of this machine differs too much from the server's: set it, for example with chrony."
    if _REGION.search(text):
        return "The bucket is in another region: set AWS_REGION to it."
    if _EXPIRED.search(text):
        return "The credentials have expired or are not valid: get new ones (AWS_SESSION_TOKEN belongs to them)."
    if kind in ("UnauthenticatedError", "PermissionDeniedError", "PermissionError") or _STATUS_403.search(text):
        return f"The credentials are missing, wrong or not allowed to do this: {_SET_KEYS}"
    if kind == "NotSupportedError" or _STATUS_501.search(text):
        return "The server does not support this request. Checkpoints need conditional writes (If-None-Match)."
    if "builder error" in text:
        return "This is no URL of a server: check the endpoint (AWS_ENDPOINT_URL, AZURE_STORAGE_ENDPOINT)."
    if "error sending request" in text or "dns error" in text:
        return _NO_ANSWER
    return TRY_AGAIN if key is not None else f"Settings are missing or wrong: {_SET_KEYS}"


def is_transient(hint: str) -> bool:
    """Whether a request that failed with this advice may succeed if it is repeated."""
    return hint in (TRY_AGAIN, _NO_ANSWER)

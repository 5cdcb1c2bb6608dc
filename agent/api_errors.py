"""Errors of requests to the Kubernetes API or to etcd: a refusal, an unknown outcome, a server that cannot be reached.

One rule: a caller that changes an object branches on the class. `Refused` and `Unreachable`: the server has not changed
it. `OutcomeUnknown`: the server may have changed it, so read the object before the next step.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.api_object import Document, object_at
from process.stderr import one_line

_MESSAGE_LENGTH = 500


class ApiError(Exception):
    """A request that failed: its text names the request, the state, the cause and, where one is known, the fix.

    `request` begins with the service, such as "Kubernetes API: GET /api/v1/nodes".
    """

    def __init__(self, request: str, cause: str, fix: str = "", *, retry_after_s: float = 0) -> None:
        self.request, self.cause, self.fix, self.retry_after_s = request, cause, fix, retry_after_s
        text = f"{request}: {cause[:_MESSAGE_LENGTH]}" + (f"; fix: {fix}" if fix else "")
        super().__init__(one_line(text))


class Unreachable(ApiError):  # noqa: N818 - named by what the caller knows, as in `except Refused`
    """A missing connection: the request was not sent."""


class Untrusted(Unreachable):
    """The server's certificate has another authority, another name, or is not valid now: the request was not sent."""


class NoCredentials(Unreachable):
    """A token, password or certificate that cannot be read: the request was not sent."""


class OutcomeUnknown(ApiError):  # noqa: N818 - as Unreachable
    """A time-out, a cut connection or a server error after the request was sent: the server may have executed it."""


class InvalidAnswer(OutcomeUnknown):
    """An answer that no such server sends, such as HTML or a redirect."""


class TooLarge(InvalidAnswer):
    """An answer larger than the limit."""


class Refused(ApiError):  # noqa: N818 - as Unreachable
    """A refusal of the server: it has not executed the request.

    `reason` is Kubernetes' word, such as "NotFound"; `name` is the name of the object that the refusal is about, ""
    where it is not about one: if the kind does not exist, or in a list.
    """

    def __init__(
        self,
        request: str,
        cause: str,
        fix: str = "",
        *,
        retry_after_s: float = 0,
        status: int = 0,
        reason: str = "",
        name: str = "",
    ) -> None:
        super().__init__(request, cause, fix, retry_after_s=retry_after_s)
        self.status, self.reason, self.name = status, reason, name


class Unauthorized(Refused):
    """A refusal with 401: the token is expired, or of another cluster."""


class Forbidden(Refused):
    """A refusal with 403: the service account lacks a right."""


class NotFound(Refused):
    """A refusal with 404: the object or the kind does not exist."""


class Conflict(Refused):
    """A refusal with 409: the object exists already, has changed (resourceVersion), or is another one (uid)."""


class Expired(Refused):
    """A refusal with 410: the server no longer has this resourceVersion; list again."""


class Invalid(Refused):
    """A refusal with 422: the object is not valid."""


class TooManyRequests(Refused):
    """A refusal with 429: the server asks to wait `retry_after_s`."""


_REFUSALS: Mapping[int, tuple[type[Refused], str]] = {
    401: (Unauthorized, "check that the token file is the current one of this cluster's service account"),
    403: (Forbidden, "grant the right to the agent's service account, as deploy/ does"),
    404: (NotFound, ""),
    409: (Conflict, ""),
    410: (Expired, ""),
    422: (Invalid, ""),
    429: (TooManyRequests, ""),
}
_REQUEST_TIMEOUT = 408  # the server may have executed the request


def status_error(request: str, status: int, document: Document, retry_after_s: float = 0) -> ApiError:
    """Returns the error of an HTTP status, with the message and the reason of Kubernetes' Status object."""
    message, reason = (value if isinstance(value := document.get(key), str) else "" for key in ("message", "reason"))
    cause = f"{message or 'no message'} (HTTP {status}{f' {reason}' if reason else ''})"
    if 400 <= status < 500 and status != _REQUEST_TIMEOUT:
        kind, fix = _REFUSALS.get(status, (Refused, ""))
        name = object_at(document, "details").get("name")
        return kind(
            request,
            cause,
            fix,
            retry_after_s=retry_after_s,
            status=status,
            reason=reason,
            name=name if isinstance(name, str) else "",
        )
    return OutcomeUnknown(request, cause, retry_after_s=retry_after_s)

"""Converts errors of botocore and the network to the library's errors. No other module reads S3's error codes."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as NotConnected
from s3fs.core import S3_RETRYABLE_ERRORS

from statekeeper.statestore.errors import AccessDenied, BucketMissing, ObjectMissing, StorageError
from statekeeper.statestore.storage.base import another_exists

NETWORK_ERRORS: tuple[type[Exception], ...] = (
    *S3_RETRYABLE_ERRORS,
    IncompleteReadError,
    NotConnected,  # s3fs does not retry a failed connection, but the store may be restarting
    ConnectionError,
)
FAILURES: tuple[type[Exception], ...] = (ClientError, BotoCoreError, *NETWORK_ERRORS)

_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)
_DENIED = {
    "401",
    "403",
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
}
_MISSING = {"404", "NoSuchKey", "NoSuchUpload"}
_PASSING = {
    "ConditionalRequestConflict",
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
}
_THROTTLING = {"SlowDown", "ServiceUnavailable", "Throttling"}
_CONFLICTS = {"PreconditionFailed", "412"}


class BeyondEnd(StorageError):
    """A range starts at or after the end of the object. The caller gets no bytes instead of an error."""


def is_passing(error: Exception) -> bool:
    """Return whether a retry of the same request may succeed."""
    if isinstance(error, ClientError):
        return _code(error) in _PASSING or _status(error) >= 500 or _status(error) == 429
    return isinstance(error, NETWORK_ERRORS)


def is_throttling(error: Exception) -> bool:
    """Return whether the store asks for fewer requests."""
    return isinstance(error, ClientError) and (_code(error) in _THROTTLING or _status(error) in (503, 429))


def is_answer(error: BaseException) -> bool:
    """Return whether the error is the store's answer to the request, and neither transient nor a conflict."""
    return isinstance(error, ClientError) and not is_passing(error) and _code(error) not in _CONFLICTS


def translate(error: Exception, shown: str) -> StorageError:
    """Return the library's error for one of FAILURES about the object `shown`."""
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(
            "the credentials are missing or incomplete",
            path=shown,
            hint="set the storage options key and secret, or the environment variables AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY. For a public bucket, set the storage option anon",
        )
    if not isinstance(error, ClientError):
        hint = "check endpoint_url and the network" if is_passing(error) else "check the URL and its options"
        return StorageError(f"{type(error).__name__}: {error}", path=shown, hint=hint)
    code = _code(error)
    if code == "NoSuchBucket":
        return BucketMissing("the bucket does not exist", path=shown, hint="create it, or correct the URL")
    if code in _MISSING:
        return ObjectMissing("does not exist", path=shown)
    if code in _DENIED:
        hint = (
            "correct the credentials or the bucket policy. Without the permission s3:ListBucket, the storage reports a "
            "missing object as access denied"
        )
        return AccessDenied(f"access denied ({code})", path=shown, hint=hint)
    if code in _CONFLICTS:
        return another_exists(shown)
    if code in ("InvalidRange", "416"):
        return BeyondEnd("the range starts after the end of the object", path=shown)
    hint = "try again later" if is_passing(error) else "follow the message of the storage"
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(f"the storage returned {code}: {message}", path=shown, hint=hint)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))

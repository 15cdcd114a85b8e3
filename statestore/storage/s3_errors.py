"""What botocore and the network raise, turned into the library's errors. The only place that reads S3's error codes."""

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

from statestore.errors import AccessDenied, AlreadyExists, BucketMissing, ObjectMissing, StorageError

NETWORK_ERRORS: tuple[type[Exception], ...] = (
    *S3_RETRYABLE_ERRORS,
    IncompleteReadError,
    NotConnected,  # s3fs itself gives up when it cannot connect; a store that restarts is worth a second try
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


class BeyondEnd(StorageError):
    """A range that starts where the object has ended: no error to a caller, who gets no bytes."""


def is_passing(error: Exception) -> bool:
    """Whether the same request may do better in a moment."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return _code(error) in _PASSING or status >= 500 or status == 429
    return isinstance(error, NETWORK_ERRORS)


def translate(error: Exception, shown: str) -> StorageError:
    """The library's error for one of FAILURES, at the object `shown`."""
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(
            "no complete credentials were found",
            path=shown,
            hint="give key and secret, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or anon for a public bucket",
        )
    if not isinstance(error, ClientError):
        hint = "look at endpoint_url and the network" if is_passing(error) else "look at the url and its options"
        return StorageError(f"{type(error).__name__}: {error}", path=shown, hint=hint)
    code = _code(error)
    if code == "NoSuchBucket":
        return BucketMissing("the bucket does not exist", path=shown, hint="create it, or correct the url")
    if code in _MISSING:
        return ObjectMissing("is not there", path=shown)
    if code in _DENIED:
        hint = "correct the credentials or the bucket's policy; s3:ListBucket is needed to tell missing from forbidden"
        return AccessDenied(f"the store refuses it ({code})", path=shown, hint=hint)
    if code in ("PreconditionFailed", "412"):
        return AlreadyExists("stands there with other bytes", path=shown, hint="somebody else was first")
    if code in ("InvalidRange", "416"):
        return BeyondEnd("the range starts behind the end", path=shown)
    hint = "try again later" if is_passing(error) else "look at the message of the store"
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(f"the store says {code}: {message}", path=shown, hint=hint)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))

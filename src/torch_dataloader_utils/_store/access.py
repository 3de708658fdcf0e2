"""The access to a store: options of the client, secrets, credentials, and the policy for retries."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Literal, final
from uuid import uuid4

from torch_dataloader_utils._core.arguments import check_choice, hold_flags, hold_integers
from torch_dataloader_utils._store.censor import environment_credentials, secret_names
from torch_dataloader_utils._store.interface import CoalesceLimits
from torch_dataloader_utils._store.retry import RetryPolicy
from torch_dataloader_utils.cache.host_cache import HostCache
from torch_dataloader_utils.errors import ConfigError, ConfigTypeError, LoaderError, StoreError, of_type


@final
class Secret:
    """Holder of storage options; `reveal()` is the only way to read them.

    Pickles with its value, because a worker process needs the value: never write that pickle anywhere. A Secret is not
    a JSON value on purpose, and has no equality, so that comparing dumps cannot leak the value either.

        f"{Secret({'key': 'AKIA'})}"      ***
    """

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def reveal(self) -> Any:
        """Return the value itself; pass it to the storage client and to nothing else."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    def __format__(self, format_spec: str) -> str:
        return "***"

    def __reduce__(self) -> tuple[type["Secret"], tuple[Any]]:
        where = _stays_out_of.get()
        names = [] if where is None else secret_names(self._value)
        if names:
            raise ConfigError(
                f"The credentials {', '.join(names)} would be written into {where}. Pass credentials=, a function that "
                "returns credentials where it is called, or let the client find them there (environment, role of the "
                "host)."
            )
        return (Secret, (self._value,))


_stays_out_of: ContextVar[str | None] = ContextVar("_stays_out_of", default=None)


@contextmanager
def without_secrets(where: str) -> Iterator[None]:
    """Make pickling of credentials raise ConfigError in this block; functions that return them still pickle.

    where: Place that the pickle would be written into, for the message.
    """
    token = _stays_out_of.set(where)
    try:
        yield
    finally:
        _stays_out_of.reset(token)


Credentials = Callable[[], Mapping[str, Any]]
"""Function that returns storage options with credentials; called to open a client, and when storage says "expired".

An attribute `reader`, text that names who reads (such as a role), lets all processes of a host share cached bytes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOptions:
    """Options for reading remote files; local files need no options.

    Attributes:
        backend: "fsspec" takes fsspec's client for the scheme (s3fs, gcsfs, adlfs, http). "obstore" takes the client of
            obstore (extra fast-s3), which must never be used in a process that is forked afterwards. "auto" takes
            obstore for S3 if it is installed and does what s3fs would do with the same options, and fsspec's client
            otherwise, also in a process that was forked after obstore was used.
        retry: `RetryPolicy`: when failed requests are sent again.
        coalesce: `CoalesceLimits`: which neighbouring ranges share a request.
        connections: Largest number of connections of one process to the store.
        keep_footers: Whether footers, and results of reading a file whole (rows and keys of text, digests), are kept
            for the other processes of this host: in `cache` or, without one, in a directory that only this user can
            read; TORCH_DATALOADER_UTILS_CACHE names the directory.
        cache: Cache on this host's disk for bytes of remote files, `HostCache(directory, max_bytes="500GiB")`;
            None for no cache.
    """

    backend: Literal["auto", "fsspec", "obstore"] = "auto"
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    coalesce: CoalesceLimits = field(default_factory=CoalesceLimits)
    connections: int = 64
    keep_footers: bool = True
    cache: HostCache | None = None

    def __post_init__(self) -> None:
        check_choice("backend", self.backend, ("auto", "fsspec", "obstore"))
        if not isinstance(self.retry, RetryPolicy):
            raise ConfigTypeError(f"retry is {of_type(self.retry)}: pass RetryPolicy(...).")
        if not isinstance(self.coalesce, CoalesceLimits):
            raise ConfigTypeError(f"coalesce is {of_type(self.coalesce)}: pass CoalesceLimits(...).")
        hold_integers(self, "connections", least=1)
        hold_flags(self, "keep_footers")
        if self.cache is not None and not isinstance(self.cache, HostCache):
            raise ConfigTypeError(f'cache is {of_type(self.cache)}: pass HostCache(directory, max_bytes="500GiB").')


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAccess:
    """Access to a store; picklable if `credentials` is, and never prints a secret.

    options: Options for the storage client, unchanged. vended: Options that a catalog adds.
    credentials: See `Credentials`; worker processes get the function, not its result.
    holds_first: Whether `vended` already has the first credentials, so that `credentials` is called only when the
        storage says that they have expired.
    token: Stores with the same token share a client in each process (s3fs takes half a second to open a client).
    """

    options: Secret = field(default_factory=lambda: Secret({}))
    vended: Secret = field(default_factory=lambda: Secret({}))
    credentials: Credentials | None = field(default=None, repr=False)
    holds_first: bool = False
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    token: str = field(default_factory=lambda: uuid4().hex, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        vended, holds_first = self.vended, self.holds_first
        if self.credentials is not None and _stays_out_of.get() is not None:  # the function returns what is left out
            secrets = secret_names(vended.reveal())
            vended, holds_first = Secret({k: v for k, v in vended.reveal().items() if k not in secrets}), False
        made = partial(
            StoreAccess,
            options=self.options,
            vended=vended,
            credentials=self.credentials,
            holds_first=holds_first,
            remote=self.remote,
            token=self.token,
        )
        return made, ()

    @classmethod
    def of(
        cls,
        storage_options: "Mapping[str, Any] | Secret | StoreAccess | None" = None,
        credentials: Credentials | None = None,
        remote: RemoteOptions | None = None,
    ) -> "StoreAccess":
        """Return the access for a user's arguments; a StoreAccess as `storage_options` is returned unchanged.

        Raises:
            ConfigTypeError: credentials that cannot be called, options that are not a mapping, or another `remote`.
        """
        if isinstance(storage_options, StoreAccess):
            return storage_options
        if credentials is not None and not callable(credentials):
            raise ConfigTypeError(
                f"credentials is {of_type(credentials)}: pass a function that returns storage options, such as "
                "{'key': ..., 'secret': ..., 'token': ...}; it is called again when the credentials expire."
            )
        if remote is not None and not isinstance(remote, RemoteOptions):
            raise ConfigTypeError(f"remote is {of_type(remote)}: pass RemoteOptions(...).")
        if not isinstance(storage_options, Secret):
            if storage_options is not None and not isinstance(storage_options, Mapping):
                raise ConfigTypeError(f"storage_options is {of_type(storage_options)}: pass a dict.")
            storage_options = Secret(dict(storage_options or {}))
        return cls(options=storage_options, credentials=credentials, remote=remote or RemoteOptions())

    @property
    def scope(self) -> str:
        """Digest of the reader: a cache does not give one access the bytes that it holds for another.

        Made of the options, and of the attribute `reader` of a function that returns credentials (its results change
        by the hour) or of credentials in the environment. What has no text, such as a function without `reader`, is
        another reader for each access; processes that an access is sent to share its token, and so its reader.
        """
        options = self.options.reveal()
        who: Any = {} if secret_names(options) else environment_credentials()
        if self.credentials is not None:
            who = str(getattr(self.credentials, "reader", "") or self.token)
        text = json.dumps([options, who], default=lambda _: self.token, sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def client_options(self, *, renews: bool = False) -> dict[str, Any]:
        """Return the options to open a client with; calls `credentials` if it is set.

        renews: Whether the credentials of an earlier call have expired.

        Raises:
            StoreError: the function raised, or returned no mapping.
        """
        options: dict[str, Any] = _copied({**self.vended.reveal(), **self.options.reveal()})
        if self.credentials is None or (self.holds_first and not renews):
            return options
        name = getattr(self.credentials, "__qualname__", type(self.credentials).__qualname__)
        try:
            found: dict[str, Any] = _copied(dict(self.credentials()))
        except LoaderError:
            raise
        except Exception as error:  # the user's function: any error, reported with the function's name
            # The text of the error is left out, since it may quote a secret.
            raise StoreError(
                f"credentials function {name} failed ({type(error).__name__}, see its traceback). Correct it, or check "
                "the service that it asks for credentials."
            ) from error
        return options | found


def _copied(options: Any) -> Any:
    """Return a copy with nested dicts copied too, since fsspec adds its own options to them; values are not copied."""
    if not isinstance(options, dict):
        return options
    return {name: _copied(value) for name, value in options.items()}
